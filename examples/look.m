% GNU Octave (and MATLAB): read a matrix and look at its singular values.
%
%   octave --quiet examples/look.m /tmp/tiny-llama model.layers.0.self_attn.q_proj.weight
args = argv();
directory = fullfile(args{1}, "tensors", args{2});
meta = jsondecode(fileread(fullfile(directory, "meta.json")));
shape = meta.views.f32.shape;
file = fopen(fullfile(directory, "f32"), "r", "ieee-le");
w = fread(file, [shape(2), shape(1)], "single=>single")'; % rows are stored one after another
fclose(file);
s = svd(double(w));
printf("%s: %d x %d, largest singular values %s\n", meta.name, shape(1), shape(2), mat2str(s(1:3)', 5));
