use super::options::Usage;
use super::{Failure, Outcome};
pub const USAGES: &[&Usage] = &[];
pub fn run(_arguments: &[String]) -> Outcome {
    Err(Failure::usage("x"))
}
