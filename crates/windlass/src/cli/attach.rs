//! `windlass attach` and `windlass migrate`: make a table of a database ready for jobs, or only say what that takes.
//!
//! Nothing that is there is changed or dropped; what would be done is told first, sentence by sentence.

use super::Context;
use super::print::{self, Out, counted};
use crate::error::{Failure, Kind};
use crate::store::place::{DatabaseUrl, JobsTable, check_name};
use crate::store::sql::Plan;
use serde_json::json;

const ATTACH_EXAMPLES: &str = "\
Examples:
  windlass attach postgres://app@db.example/app
  windlass attach sqlite:/srv/app.db --apply
  windlass attach mysql://app@db.example/app --table work --map name=kind,data=payload --apply";

const MIGRATE_EXAMPLES: &str = "\
Examples:
  windlass --store postgres://app@db.example/app migrate --dry-run
  windlass migrate";

#[derive(Debug, clap::Args)]
#[command(before_help = ATTACH_EXAMPLES)]
pub(super) struct AttachArgs {
    /// The database: postgres://…, mysql://… or sqlite:PATH
    #[arg(value_name = "URL")]
    database: DatabaseUrl,
    /// The table
    #[arg(long, value_name = "NAME", default_value = JobsTable::TABLE, value_parser = name)]
    table: String,
    /// Its schema, in PostgreSQL
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,
    /// Columns that are called otherwise: ours, then the table's
    #[arg(long, value_name = "OURS=THEIRS,…", value_delimiter = ',', value_parser = pair)]
    map: Vec<(String, String)>,
    /// Do it; without this nothing is changed
    #[arg(long)]
    apply: bool,
}

#[derive(Debug, clap::Args)]
#[command(before_help = MIGRATE_EXAMPLES)]
pub(super) struct MigrateArgs {
    /// Only print the statements
    #[arg(long)]
    dry_run: bool,
}

fn name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned())
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (ours, theirs) = text.split_once('=').ok_or_else(|| format!("{text:?} is no pair, expected OURS=THEIRS"))?;
    Ok((ours.to_owned(), theirs.to_owned()))
}

pub(super) fn attach(args: &AttachArgs, context: &Context) -> Result<u8, Failure> {
    let mut table = JobsTable::new(args.database.clone());
    table.table = args.table.clone();
    if let Some(schema) = &args.schema {
        table.set_schema(schema).map_err(|why| Failure::new(Kind::Usage, format!("--schema {schema}: {why}")))?;
    }
    for (ours, theirs) in &args.map {
        table.rename(ours, theirs).map_err(|why| Failure::new(Kind::Usage, format!("--map: {why}")))?;
    }
    let options = table.options("attach");
    let plan = if args.apply { options.apply()? } else { options.plan()? };
    if context.json {
        return told(&plan, args.apply);
    }
    let mut out = Out::new();
    if plan.found.is_empty() {
        out.line(format_args!("{table}: not there"));
    } else {
        out.line(format_args!("{table}: columns {}", plan.found.join(", ")));
    }
    list(&plan, args.apply, &mut out);
    if plan.is_done() || args.apply {
        out.line(format_args!("ready; in the config:\n{}", section(&table)));
    } else {
        out.line("nothing was changed; --apply does it");
    }
    out.finish()
}

pub(super) fn migrate(args: &MigrateArgs, context: &Context) -> Result<u8, Failure> {
    let store = context.store_of(&context.dir_path()?)?;
    let Some(table) = store.table() else {
        let text = "the jobs are in the data directory, which needs no migration";
        return Err(Failure::new(Kind::Usage, text).hint("name a database with --store"));
    };
    let options = table.options("migrate");
    let plan = if args.dry_run { options.plan()? } else { options.apply()? };
    if context.json {
        return told(&plan, !args.dry_run);
    }
    let mut out = Out::new();
    if args.dry_run {
        // Statements that can be read, kept and carried out by somebody else.
        for step in plan.steps.iter().chain(&plan.beside) {
            out.line(format_args!("-- {}\n{};", step.why, step.sql));
        }
    } else {
        list(&plan, true, &mut out);
    }
    if plan.is_done() {
        context.say(format_args!("{table} is up to date"));
    }
    out.finish()
}

fn list(plan: &Plan, done: bool, out: &mut Out) {
    let mark = if done { "done" } else { "would be done" };
    let refused = |why: &str| plan.refused.iter().any(|refused| refused.starts_with(why));
    let steps: Vec<_> = plan.steps.iter().chain(&plan.beside).filter(|step| !refused(&step.why)).collect();
    for step in &steps {
        out.line(format_args!("{mark}: {}", step.why));
    }
    if !steps.is_empty() {
        out.line(format_args!("{} {mark}", counted(steps.len() as u64, "step")));
    }
    for remark in &plan.remarks {
        out.line(format_args!("{remark}"));
    }
    for refused in &plan.refused {
        out.line(format_args!("not allowed, and not needed: {refused}"));
    }
}

fn told(plan: &Plan, applied: bool) -> Result<u8, Failure> {
    let all = plan.steps.iter().chain(&plan.beside);
    let steps: Vec<_> = all.map(|step| json!({ "why": step.why, "sql": step.sql })).collect();
    let Plan { found, refused, remarks, .. } = plan;
    let told = json!({ "found": found, "steps": steps, "applied": applied, "refused": refused, "remarks": remarks });
    print::document(&told)
}

/// What a config needs to say, without the password.
fn section(table: &JobsTable) -> String {
    let mut lines = vec!["[store]".to_owned(), format!("url = {:?}", table.database.to_string())];
    if table.table != JobsTable::TABLE {
        lines.push(format!("table = {:?}", table.table));
    }
    lines.extend(table.schema.as_ref().map(|schema| format!("schema = {schema:?}")));
    if !table.map.is_empty() {
        let pairs: Vec<String> = table.map.iter().map(|(ours, theirs)| format!("{ours} = {theirs:?}")).collect();
        lines.push(format!("map = {{ {} }}", pairs.join(", ")));
    }
    lines.join("\n")
}
