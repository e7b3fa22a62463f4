//! `[traces]`: where the spans of traced jobs are sent.

use super::Table;
use crate::error::Failure;
use crate::spans::TraceOptions;

pub(super) fn read(table: &Table<'_, '_>, default: TraceOptions) -> Result<TraceOptions, Failure> {
    table.only(&["export", "service"])?;
    let service = table.map("service", |text| match text {
        "" => Err("the name is empty".to_owned()),
        name => Ok(name.to_owned()),
    })?;
    let export = table.map("export", str::parse)?;
    Ok(TraceOptions { export: export.or(default.export), service: service.unwrap_or(default.service) })
}
