//! `stfs cat`: a view to standard output.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;

use crate::cli::CatArgs;
use crate::error::Error;
use crate::view::{SharedView, View};

/// Bytes written at a time.
const PIECE: u64 = 1 << 20;

pub(super) fn run(args: &CatArgs) -> Result<ExitCode> {
    let model = Arc::new(super::open_model(&args.of.model)?);
    let (id, _) = model.find(&args.of.tensor)?;
    let row = args.view.0.row();
    let view = (row.view)(&model, id)?.ok_or_else(|| {
        Error::NotFound(format!("tensor '{}' has no {}", args.of.tensor, row.lacks))
    })?;
    copy_out(&view)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a view straight to the descriptor: only the kernel may touch a piece of a mapping, so it
/// must not pass through a buffered writer.
fn copy_out(view: &SharedView) -> Result<()> {
    let mut out = super::stdout();
    let mut buffer = Vec::new();
    let mut at = 0;
    while at < view.len() {
        let n = PIECE.min(view.len() - at);
        match view.piece(at, n as usize) {
            Some(piece) => piece.write_to(rustix::stdio::stdout(), "standard output")?,
            None => {
                buffer.resize(n as usize, 0);
                view.read_at(at, &mut buffer)?;
                out.write_all(&buffer)?;
            }
        }
        at += n;
    }
    Ok(())
}
