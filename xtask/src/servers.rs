//! PostgreSQL and MariaDB for the tests, the benches and the proofs: started under `target/servers`, and stopped with
//! whoever started them.
//!
//! Nothing that runs already is touched. Where the variables name servers, those are used, and none is started. This
//! file must not know what is tested.

#[expect(dead_code, reason = "shared with the rigs, which end servers and start them again")]
pub(crate) mod database;
#[path = "../../crates/windlass/tests/shared/ports.rs"]
mod ports;

use crate::setup::setup_for_some;
use crate::steps::root;
use database::{Database, start_mariadb, start_postgres};
use std::fs::{self, File};
use std::path::Path;

/// Where tests find a PostgreSQL in which they may make databases: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`.
const POSTGRES: &str = "WINDLASS_TEST_POSTGRES";
/// The same of a MariaDB, with `mysql://`.
const MARIADB: &str = "WINDLASS_TEST_MARIADB";

/// Both servers, and the names that tests find them by.
pub(crate) struct Servers {
    /// None where the variables named them.
    running: Vec<Database>,
    variables: Vec<(&'static str, String)>,
    /// Held while the folder is in use.
    _lock: Option<File>,
}

impl Servers {
    /// The servers that the variables name, or new ones.
    pub(crate) fn start() -> Result<Servers, String> {
        let named = [POSTGRES, MARIADB].map(|name| std::env::var(name).ok().map(|url| (name, url)));
        if let [Some(postgres), Some(mariadb)] = named {
            return Ok(Servers { running: Vec::new(), variables: vec![postgres, mariadb], _lock: None });
        }
        let folder = root().join("target/servers");
        fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
        let lock = lock(&folder)?;
        let mut servers = Servers { running: Vec::new(), variables: Vec::new(), _lock: Some(lock) };
        for (variable, database) in
            [(POSTGRES, start_postgres(&folder, "postgres")?), (MARIADB, start_mariadb(&folder, "mariadb")?)]
        {
            eprintln!("── servers: {} at {}", database.name, database.url);
            servers.variables.push((variable, database.url.clone()));
            servers.running.push(database);
        }
        Ok(servers)
    }

    pub(crate) fn postgres(&self) -> Result<&str, String> {
        self.named(POSTGRES)
    }

    pub(crate) fn mariadb(&self) -> Result<&str, String> {
        self.named(MARIADB)
    }

    fn named(&self, variable: &str) -> Result<&str, String> {
        let found = self.variables.iter().find(|(name, _)| *name == variable);
        found.map(|(_, url)| url.as_str()).ok_or_else(|| format!("no server is known as {variable}"))
    }

    /// What the commands of this task are told.
    pub(crate) fn variables(&self) -> &[(&'static str, String)] {
        &self.variables
    }
}

/// `cargo xtask servers`: starts both, says where they are, and stays until it is interrupted or one of them ends.
pub(crate) fn servers() -> Result<(), String> {
    setup_for_some();
    let mut servers = Servers::start()?;
    for (variable, url) in servers.variables() {
        println!("export {variable}={url}");
    }
    let Some(first) = servers.running.first_mut() else {
        return Err(format!("{POSTGRES} and {MARIADB} name servers already: none was started"));
    };
    eprintln!("── servers: until Ctrl-C");
    Err(first.ended_by_itself())
}

fn lock(folder: &Path) -> Result<File, String> {
    let path = folder.join("lock");
    let file = File::create(&path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    let taken = format!("servers of another `cargo xtask` run in {}", folder.display());
    file.try_lock().map_err(|_| format!("{taken}: stop it, or set the two variables that it printed"))?;
    Ok(file)
}
