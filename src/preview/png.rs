//! A palette PNG whose size is known before any pixel is: deflate's stored blocks (RFC 1951,
//! section 3.2.4) in a zlib stream (RFC 1950) in the fewest chunks (PNG, third edition).

/// The longest stored block, in bytes.
const BLOCK: usize = 65_535;
/// Length, type and checksum around a chunk's data.
const CHUNK: usize = 12;
const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";
const IHDR: usize = 13;
const SRGB: usize = 1;
const PLTE: usize = 3 * 256;

/// The exact length of [`encode`]'s output, in bytes.
pub fn len(width: usize, height: usize) -> usize {
    SIGNATURE.len()
        + (CHUNK + IHDR)
        + (CHUNK + SRGB)
        + (CHUNK + PLTE)
        + (CHUNK + zlib_len((width + 1) * height))
        + CHUNK
}

fn zlib_len(data: usize) -> usize {
    2 + data.div_ceil(BLOCK).max(1) * 5 + data + 4
}

/// `pixels` (row by row, indices into `palette`) as a PNG.
pub fn encode(width: usize, height: usize, palette: &[[u8; 3]; 256], pixels: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(len(width, height));
    out.extend_from_slice(&SIGNATURE);
    let mut header = Vec::with_capacity(IHDR);
    header.extend_from_slice(&(width as u32).to_be_bytes());
    header.extend_from_slice(&(height as u32).to_be_bytes());
    // 8 bits a pixel, palette, deflate, adaptive filtering, not interlaced.
    header.extend_from_slice(&[8, 3, 0, 0, 0]);
    chunk(&mut out, b"IHDR", &header);
    chunk(&mut out, b"sRGB", &[0]); // perceptual intent
    chunk(&mut out, b"PLTE", palette.as_flattened());
    chunk(&mut out, b"IDAT", &zlib(width, pixels));
    chunk(&mut out, b"IEND", &[]);
    out
}

fn chunk(out: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    let start = out.len();
    out.extend_from_slice(kind);
    out.extend_from_slice(data);
    let crc = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&crc.to_be_bytes());
}

/// The rows, each after a filter byte of 0 (none), stored.
fn zlib(width: usize, pixels: &[u8]) -> Vec<u8> {
    let mut rows = Vec::with_capacity(pixels.len() + pixels.len() / width.max(1));
    for row in pixels.chunks(width.max(1)) {
        rows.push(0);
        rows.extend_from_slice(row);
    }
    // Deflate with a 32 KiB window, fastest; 0x7801 is a multiple of 31, as the format requires.
    let mut out = vec![0x78, 0x01];
    let mut blocks = rows.chunks(BLOCK).peekable();
    while let Some(block) = blocks.next() {
        let len = block.len() as u16;
        out.push(u8::from(blocks.peek().is_none()));
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&(!len).to_le_bytes());
        out.extend_from_slice(block);
    }
    out.extend_from_slice(&adler2::adler32_slice(&rows).to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_as_foretold() {
        let palette = [[0; 3]; 256];
        for (w, h) in [(1, 1), (544, 163), (544, 700), (65_534, 1), (65_534, 2)] {
            let png = encode(w, h, &palette, &vec![7; w * h]);
            assert_eq!(png.len(), len(w, h));
        }
    }

    /// Decoded by the `png` crate, which is not ours.
    #[test]
    fn another_decoder_reads_it_back() {
        let palette: [[u8; 3]; 256] = std::array::from_fn(|i| [i as u8, 255 - i as u8, 7]);
        let (w, h) = (301, 257);
        let pixels: Vec<u8> = (0..w * h).map(|i| (i * 31 % 251) as u8).collect();
        let file = encode(w, h, &palette, &pixels);
        let mut reader = png::Decoder::new(std::io::Cursor::new(&file))
            .read_info()
            .unwrap();
        let mut got = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut got).unwrap();
        assert_eq!((info.width as usize, info.height as usize), (w, h));
        assert_eq!(
            reader.info().palette.as_deref(),
            Some(palette.as_flattened())
        );
        assert_eq!(got, pixels);
        reader.finish().unwrap();
    }
}
