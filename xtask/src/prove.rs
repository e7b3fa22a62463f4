//! Proofs.
pub(crate) fn prove(_: &[&str]) -> Result<(), String> {
    Ok(())
}
