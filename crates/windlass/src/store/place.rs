//! Where the jobs are kept: in the data directory, or in a `jobs` table of somebody's database.
//!
//! What `--store`, `WINDLASS_STORE` and `[store]` name, checked as far as that can be done without asking a database.
//! It must not open anything, and it shows nobody a password.

use super::sql::{Dialect, Keep, OWN, SEED, SqlOptions};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use url::Url;

/// The place of a server's jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StorePlace {
    /// The data directory itself.
    #[default]
    Embedded,
    Table(JobsTable),
}

impl StorePlace {
    /// The table, where the jobs are in one.
    pub fn table(&self) -> Option<&JobsTable> {
        match self {
            StorePlace::Embedded => None,
            StorePlace::Table(table) => Some(table),
        }
    }
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorePlace::Embedded => f.write_str("the data directory"),
            StorePlace::Table(table) => table.fmt(f),
        }
    }
}

/// Where a stage of a pipeline is kept that says so itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StagePlace {
    /// In the directory of its name within this one.
    Directories(PathBuf),
    /// In a data directory: this one, or that of whoever runs it.
    Embedded(Option<PathBuf>),
    Table(DatabaseUrl),
}

impl fmt::Display for StagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StagePlace::Directories(path) => write!(f, "{DIRECTORIES}{}", path.display()),
            StagePlace::Embedded(None) => f.write_str(EMBEDDED),
            StagePlace::Embedded(Some(path)) => write!(f, "{EMBEDDED}:{}", path.display()),
            StagePlace::Table(database) => database.fmt(f),
        }
    }
}

impl FromStr for StagePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<StagePlace, String> {
        let within = |path: &str, word: &str| match path.is_empty() || path.contains('\0') {
            true => Err(format!("{text:?} names no directory, expected {word}PATH")),
            false => std::path::absolute(path).map_err(|e| e.to_string()),
        };
        if let Some(path) = text.strip_prefix(DIRECTORIES) {
            return within(path, DIRECTORIES).map(StagePlace::Directories);
        }
        match text.strip_prefix(EMBEDDED).map(|rest| (rest, rest.strip_prefix(':'))) {
            Some(("", _)) => Ok(StagePlace::Embedded(None)),
            Some((_, Some(path))) => within(path, "embedded:").map(|path| StagePlace::Embedded(Some(path))),
            _ => match text.parse() {
                Ok(database) => Ok(StagePlace::Table(database)),
                Err(why) => Err(format!("{why}, or \"dir:PATH\", \"embedded\" or \"embedded:PATH\"")),
            },
        }
    }
}

/// What a store of directories begins with.
pub const DIRECTORIES: &str = "dir:";
const EMBEDDED: &str = "embedded";

/// A table in a database, and what it is called there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobsTable {
    pub database: DatabaseUrl,
    pub table: String,
    /// The schema in PostgreSQL; without one it is where new tables go.
    pub schema: Option<String>,
    /// Columns that are called otherwise: ours, and the name in the table.
    pub map: BTreeMap<String, String>,
    pub keep: Keep,
    /// How many rows of jobs that succeeded stay at most; none for any number.
    pub keep_most: Option<u64>,
    /// For how long a server that is not heard of keeps what it has claimed.
    pub lease: Duration,
}

impl JobsTable {
    pub const TABLE: &'static str = "jobs";
    pub const LEASE: Duration = Duration::from_secs(30);

    /// The usual table of a database.
    pub fn new(database: DatabaseUrl) -> JobsTable {
        let (table, map) = (JobsTable::TABLE.to_owned(), BTreeMap::new());
        let (keep, lease) = (Keep::default(), JobsTable::LEASE);
        JobsTable { database, table, schema: None, map, keep, keep_most: None, lease }
    }

    /// How a server of this name opens it.
    pub fn options(&self, server: &str) -> SqlOptions {
        SqlOptions {
            schema: self.schema.clone(),
            table: self.table.clone(),
            columns: self.columns(),
            keep: self.keep,
            keep_most: self.keep_most,
            lease: self.lease,
            ..SqlOptions::new(self.database.secret(), server)
        }
    }

    /// Whether the database says of itself that there are new rows.
    pub fn speaks(&self) -> bool {
        match self.database.kind {
            DatabaseKind::PostgreSql => true,
            DatabaseKind::MariaDb | DatabaseKind::Sqlite => false,
        }
    }

    /// The table however its address is spelt, and whoever asks: for comparing.
    pub fn identity(&self) -> String {
        let table = format!("{}{}", self.schema.as_ref().map(|s| format!("{s}.")).unwrap_or_default(), self.table);
        let (scheme, port) = match self.database.kind {
            DatabaseKind::PostgreSql => ("postgres", 5432),
            DatabaseKind::MariaDb => ("mysql", 3306),
            DatabaseKind::Sqlite => return format!("{}, table {table}", self.database.text),
        };
        let Ok(url) = Url::parse(&self.database.text) else { return table };
        let (host, port) = (url.host_str().unwrap_or_default(), url.port().unwrap_or(port));
        format!("{scheme}://{host}:{port}{}, table {table}", url.path())
    }

    /// All columns that are called otherwise. One of ours gives way to one of the application's that has its name.
    fn columns(&self) -> BTreeMap<String, String> {
        let taken = |own: &&&str| self.map.values().any(|name| name == **own) && !self.map.contains_key(**own);
        let moved = OWN.iter().filter(taken).map(|own| ((*own).to_owned(), format!("windlass_{own}")));
        self.map.clone().into_iter().chain(moved).collect()
    }

    /// Notes the schema of the table, in a database that has some.
    pub fn set_schema(&mut self, schema: &str) -> Result<(), String> {
        check_name(schema)?;
        let dialect = Dialect::of(self.database.secret()).map_err(|error| error.to_string())?;
        if let Some(why) = dialect.without_schemas() {
            return Err(why.to_owned());
        }
        self.schema = Some(schema.to_owned());
        Ok(())
    }

    /// Notes that a column is called otherwise; `queue` and the parts of the subject are known by our words, too.
    pub fn rename(&mut self, column: &str, name: &str) -> Result<(), String> {
        let known = match column {
            "queue" => "name",
            "subject_id" => "taskable_id",
            "subject_type" => "taskable_type",
            other => other,
        };
        if !SEED.contains(&known) && !OWN.contains(&known) {
            return Err(format!("{column:?} is no column, expected one of {}", SEED.join(", ")));
        }
        check_name(name)?;
        if known != name {
            self.map.insert(known.to_owned(), name.to_owned());
        }
        let all = self.columns();
        let name = |known: &&'static str| all.get(*known).map_or(*known, String::as_str).to_owned();
        let mut names: Vec<String> = SEED.iter().chain(&OWN).map(name).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("two columns are called {:?}", pair[0])),
            None => Ok(()),
        }
    }
}

impl fmt::Display for JobsTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schema = self.schema.as_ref().map(|schema| format!("{schema}.")).unwrap_or_default();
        write!(f, "table {schema}{} of {}", self.table, self.database)
    }
}

/// As the config says it.
impl Keep {
    pub fn word(self) -> &'static str {
        match self {
            Keep::Rows => "rows",
            Keep::None => "none",
        }
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Keep, String> {
        let known = [Keep::Rows, Keep::None].into_iter().find(|keep| keep.word() == text);
        known.ok_or_else(|| format!("{text:?} does not say what is kept, expected \"rows\" or \"none\""))
    }
}

/// A name that can be a table, a schema or a column without asking the database.
pub fn check_name(name: &str) -> Result<(), String> {
    const LONGEST: usize = 63;
    let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    match name {
        "" => Err("the name is empty".to_owned()),
        long if long.len() > LONGEST => Err(format!("{name:?} is too long, expected at most {LONGEST} bytes")),
        _ if name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(plain) => {
            Err(format!("{name:?} is no name, expected letters, digits and underscores"))
        }
        _ => Ok(()),
    }
}

/// Which database it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseKind {
    PostgreSql,
    /// MySQL speaks so, too.
    MariaDb,
    Sqlite,
}

/// The address of a database. Shown without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    kind: DatabaseKind,
    text: String,
}

impl DatabaseUrl {
    pub fn kind(&self) -> DatabaseKind {
        self.kind
    }

    /// With its password, for whoever connects.
    pub fn secret(&self) -> &str {
        &self.text
    }

    /// The file of an SQLite database.
    pub fn path(&self) -> Option<&str> {
        self.text.strip_prefix("sqlite:").map(|path| path.strip_prefix("//").unwrap_or(path))
    }
}

impl FromStr for DatabaseUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<DatabaseUrl, String> {
        const EXPECTED: &str = "expected postgres://…, mysql://… or sqlite:PATH";
        let (scheme, rest) = text.split_once(':').ok_or_else(|| format!("this names no store, {EXPECTED}"))?;
        let kind = match scheme {
            "postgres" | "postgresql" => DatabaseKind::PostgreSql,
            "mysql" | "mariadb" => DatabaseKind::MariaDb,
            "sqlite" => DatabaseKind::Sqlite,
            other => return Err(format!("there is no store of the kind {other:?}, {EXPECTED}")),
        };
        if kind == DatabaseKind::Sqlite {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            if path.is_empty() || path.contains(['?', '\0']) || path.starts_with(':') {
                return Err(format!("sqlite: {path:?} is no file, expected sqlite:PATH"));
            }
            let path = std::path::absolute(path).map_err(|e| e.to_string())?;
            return Ok(DatabaseUrl { kind, text: format!("sqlite:{}", path.display()) });
        }
        // The text itself stays out of the sentence: it may hold a password.
        let url = Url::parse(text).map_err(|e| format!("the address of the database cannot be read: {e}"))?;
        if url.host_str().is_none_or(str::is_empty) && url.query().is_none() {
            return Err(format!("the address {} names no host, {EXPECTED}", shown(&url)));
        }
        if url.path().trim_start_matches('/').is_empty() {
            return Err(format!("the address {} names no database, expected …://HOST/DATABASE", shown(&url)));
        }
        Ok(DatabaseUrl { kind, text: text.to_owned() })
    }
}

/// Without the password, and without what stands behind the database, which may hold one.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    if url.password().is_some() {
        // An address that has a password has a place for one.
        let _ = url.set_password(Some("***"));
    }
    url.set_query(None);
    url.to_string()
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Url::parse(&self.text) {
            Ok(url) if self.kind != DatabaseKind::Sqlite => f.write_str(&shown(&url)),
            _ => f.write_str(&self.text),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_without_passwords() {
        for (text, kind, told) in [
            ("postgres://ann:pw@db:5433/app", DatabaseKind::PostgreSql, "postgres://ann:***@db:5433/app"),
            ("postgresql://db/app?password=pw", DatabaseKind::PostgreSql, "postgresql://db/app"),
            ("mysql://ann@db/app", DatabaseKind::MariaDb, "mysql://ann@db/app"),
            ("mariadb://db/app", DatabaseKind::MariaDb, "mariadb://db/app"),
            ("sqlite:/srv/app.db", DatabaseKind::Sqlite, "sqlite:/srv/app.db"),
            ("sqlite:///srv/app.db", DatabaseKind::Sqlite, "sqlite:/srv/app.db"),
        ] {
            let url: DatabaseUrl = text.parse().unwrap();
            assert_eq!((url.kind(), url.to_string().as_str(), format!("{url:?}").as_str()), (kind, told, told));
        }
        let url: DatabaseUrl = "sqlite:app.db".parse().unwrap();
        assert!(url.path().unwrap().starts_with('/'), "a server may change its directory");
        for (wrong, why) in [
            ("", "names no store"),
            ("jobs", "names no store"),
            ("redis://h/0", "no store of the kind \"redis\""),
            ("postgres://ann:pw@db", "names no database"),
            ("mysql:///app", "names no host"),
            ("sqlite:", "is no file"),
            ("sqlite::memory:", "is no file"),
        ] {
            let told = wrong.parse::<DatabaseUrl>().unwrap_err();
            assert!(told.contains(why) && !told.contains("pw"), "{wrong}: {told}");
        }
    }

    #[test]
    fn the_place_of_a_stage_is_read_and_shown() {
        for text in ["dir:/srv/q", "embedded", "embedded:/srv/data", "sqlite:/srv/app.db", "postgres://db/app"] {
            assert_eq!(text.parse::<StagePlace>().unwrap().to_string(), text);
        }
        assert_eq!("postgres://a:pw@db/app".parse::<StagePlace>().unwrap().to_string(), "postgres://a:***@db/app");
        for (wrong, why) in
            [("dir:", "expected dir:PATH"), ("embedded:", "expected embedded:PATH"), ("table", "or \"dir:PATH\"")]
        {
            let told = wrong.parse::<StagePlace>().unwrap_err();
            assert!(told.contains(why), "{wrong}: {told}");
        }
    }

    #[test]
    fn a_schema_is_refused_where_there_are_none() {
        for (url, refused) in [
            ("postgres://db/app", None),
            ("mysql://db/app", Some("a schema is a database")),
            ("sqlite:/a", Some("SQLite has no schemas")),
        ] {
            let told = JobsTable::new(url.parse().unwrap()).set_schema("app");
            assert_eq!(told.is_ok(), refused.is_none(), "{url}");
            assert!(told.err().is_none_or(|why| why.contains(refused.unwrap())), "{url}");
        }
        assert!(JobsTable::new("postgres://db/app".parse().unwrap()).set_schema("a b").is_err());
    }

    #[test]
    fn columns_are_renamed_once() {
        let mut table = JobsTable::new("sqlite:/a".parse().unwrap());
        table.rename("queue", "state").unwrap();
        table.rename("data", "payload").unwrap();
        table.rename("status", "status").unwrap();
        let columns = table.options("s").columns;
        let told = |ours: &str| columns.get(ours).map(String::as_str);
        assert_eq!((told("name"), told("data"), told("status")), (Some("state"), Some("payload"), None));
        assert_eq!(told("state"), Some("windlass_state"), "ours gives way");
        table.rename("state", "our_state").unwrap();
        assert_eq!(table.options("s").columns["state"], "our_state");
        for (column, name) in [("nonsense", "a"), ("id", "a b"), ("id", ""), ("id", "1a"), ("id", "status")] {
            assert!(table.clone().rename(column, name).is_err(), "{column} {name}");
        }
    }
}
