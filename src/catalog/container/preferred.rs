//! A directory that holds models in several formats: the first container that claims it is served, and
//! what it keeps from being served is remembered.

use super::{CONTAINERS, Claim, Container, Listing, Parts, Verdict, refusal};
use crate::catalog::Findings;
use crate::error::{Error, Result};

/// The model that is served, and remarks about those that are not.
struct Preferred {
    claim: Box<dyn Claim>,
    left_out: Vec<String>,
}

/// The first claim on a directory.
///
/// # Errors
/// No container claims it; the message lists what was looked for.
pub(super) fn claim(listing: &Listing) -> Result<Box<dyn Claim>> {
    let mut almost = None;
    let mut containers = CONTAINERS.iter();
    while let Some(container) = containers.next() {
        match container.claim_listing(listing)? {
            Verdict::Yes(claim) => {
                let others = containers.filter_map(|c| left_out(*c, *container, listing));
                let left_out = others.collect();
                return Ok(Box::new(Preferred { claim, left_out }));
            }
            Verdict::No => {}
            Verdict::Almost(error) => almost = almost.or(Some(error)),
        }
    }
    match almost {
        Some(error) => Ok(Box::new(Refused(error))),
        None => Err(refusal::of_listing(listing)),
    }
}

/// A model that cannot be read at all: an error when it is opened, a problem when it is verified.
struct Refused(Error);

impl Claim for Refused {
    fn file(&self) -> &str {
        ""
    }

    fn read(self: Box<Self>, _: &mut Findings) -> Result<Parts> {
        Err(self.0)
    }
}

/// The remark about a model that another container would have served.
fn left_out(other: &dyn Container, served: &dyn Container, listing: &Listing) -> Option<String> {
    let (other_name, served) = (other.name(), served.name());
    match other.claim_listing(listing) {
        Ok(Verdict::Yes(claim)) => Some(format!(
            "{} ({other_name}) is left out: the {served} model beside it is served; mount it by its path",
            claim.file()
        )),
        Ok(Verdict::No | Verdict::Almost(_)) => None,
        Err(error) => Some(format!(
            "left out, as a {served} model is served: the directory {}",
            error.without_location()
        )),
    }
}

impl Claim for Preferred {
    fn file(&self) -> &str {
        self.claim.file()
    }

    fn read(self: Box<Self>, findings: &mut Findings) -> Result<Parts> {
        let mut parts = self.claim.read(findings)?;
        parts.catalog.notes.extend(self.left_out);
        Ok(parts)
    }
}
