//! `stfs man`: one manual page with a section for every command, generated from the same definition as
//! the help. (A page for each command would have to be installed to be found.)

use std::io;

use anyhow::Result;
use clap::Command;
use clap_mangen::Man;

/// The sections that clap does not generate.
const END: &str = r#".SH MODEL
A directory that contains a model, or one of its files.
If a directory contains several, safetensors come first, then GGUF, a
.I .bin
with its manifest, and PyTorch checkpoints;
.B stfs ls \-\-why
names what is left out.
For every command but
.B mount
it may also be the mountpoint of a mounted model.
.TP
.I FILE#KEY.PATH
A part of a PyTorch checkpoint:
.B run.ckpt#ema.net
means the tensors below the key
.B net
of the key
.BR ema ,
and
.B run.ckpt#
everything in the file, with the full key path as names.
A file whose own name contains the
.B #
comes first.
.PP
A checkpoint's pickle is read as data. Nothing that it names is imported or called.
.SH "EXIT STATUS"
.TP
.B 0
Done.
.TP
.B 1
Failed. Of
.BR diff ,
.B stat \-\-check
and
.BR verify :
found something.
.TP
.B 2
Wrong usage. Of those three also: an error, so that nothing could be checked.
.SH ENVIRONMENT
.TP
.B NO_COLOR
If set, no colors are written.
.SH "SEE ALSO"
.BR mount (8),
.BR fusermount3 (1)
"#;

/// The page, as roff.
pub(super) fn page(command: Command) -> Result<String> {
    // The page replaces `help`.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let man = Man::new(command.clone());
    let mut page = rendered(|out| man.render_title(out))?;
    page += ".SH NAME\n";
    page += &body(|out| man.render_name_section(out))?;
    page += ".SH SYNOPSIS\n";
    page += &body(|out| man.render_synopsis_section(out))?;
    page += ".SH DESCRIPTION\n";
    page += &body(|out| man.render_description_section(out))?;
    page += ".SH COMMANDS\n";
    parts(&command, &mut page)?;
    page += END;
    Ok(ascii(&page))
}

/// troff reads letters outside ASCII only after a preprocessor.
fn ascii(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    for c in page.chars() {
        match c.is_ascii() {
            true => text.push(c),
            false => text += &format!("\\[u{:04X}]", c as u32),
        }
    }
    text
}

/// A section for each command, or for each of its subcommands.
fn parts(command: &Command, page: &mut String) -> Result<()> {
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        if sub.has_subcommands() {
            parts(sub, page)?;
            continue;
        }
        // Every command has these two.
        let sub = sub.clone().mut_args(|arg| match arg.get_id().as_str() {
            "help" | "version" => arg.hide(true),
            _ => arg,
        });
        let name = sub.get_bin_name().unwrap_or_else(|| sub.get_name());
        *page += &format!(".SS \"{name}\"\n");
        let man = Man::new(sub);
        *page += &body(|out| man.render_synopsis_section(out))?;
        *page += ".PP\n";
        *page += &body(|out| man.render_description_section(out))?;
        *page += &body(|out| man.render_options_section(out))?;
    }
    Ok(())
}

fn rendered(render: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> Result<String> {
    let mut text = Vec::new();
    render(&mut text)?;
    Ok(String::from_utf8(text)?)
}

/// A section without its heading and the text before it: the page has its own.
fn body(render: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> Result<String> {
    let text = rendered(render)?;
    let after = text
        .split_once(".SH ")
        .and_then(|(_, t)| t.split_once('\n'));
    Ok(after.map_or("", |(_, body)| body).to_string())
}
