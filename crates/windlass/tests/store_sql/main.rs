//! The store on a jobs table passes the suite on every database, each case in tables of its own.
//!
//! A crash here is a connection that is dropped: the database rolls back what was open, as it does when a process dies.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use windlass::store::StoreView;
use windlass::store::conformance::{self, Bench};
use windlass::store::sql::{Keep, OWN, SEED, SqlOptions, SqlStore, SqlView};

mod changed;
#[path = "../rigs/databases.rs"]
mod databases;
mod numbers;
mod odd;
mod others;
mod server;
mod tables;

use databases::Place;

/// Each store in tables of its own.
struct OnTable {
    place: Place,
    keep: Keep,
    /// All columns are called otherwise, and so is the table.
    mapped: bool,
    options: Option<SqlOptions>,
    view: Option<SqlView>,
}

impl OnTable {
    fn new(place: Place, keep: Keep) -> OnTable {
        OnTable { place, keep, mapped: false, options: None, view: None }
    }
}

impl Bench for OnTable {
    type Store = SqlStore;

    fn fresh(&mut self) -> SqlStore {
        self.view = None;
        let schema = self.place.next_schema();
        let mut options = SqlOptions { schema, ..self.place.options("suite") };
        options.keep = self.keep;
        if self.mapped {
            let called = |word: &&str| ((*word).to_owned(), format!("its_{word}"));
            options.columns = SEED.iter().chain(&OWN).map(called).collect();
            options.table = "work".into();
        }
        options.apply().unwrap();
        self.view = Some(SqlView::open(options.clone()).unwrap());
        self.options = Some(options.clone());
        SqlStore::open(options).unwrap()
    }

    fn crash(&mut self, store: SqlStore) -> SqlStore {
        drop(store);
        SqlStore::open(self.options.clone().unwrap()).unwrap()
    }

    fn view<'a>(&'a self, _store: &'a SqlStore) -> Box<dyn StoreView + 'a> {
        Box::new(self.view.as_ref().unwrap())
    }
}

#[test]
fn passes_the_suite_on_postgresql() {
    conformance::run(&mut OnTable::new(Place::postgres(), Keep::Rows));
}

#[test]
fn passes_the_suite_on_postgresql_keeping_no_rows() {
    conformance::run(&mut OnTable::new(Place::postgres(), Keep::None));
}

#[test]
fn passes_the_suite_on_mariadb() {
    conformance::run(&mut OnTable::new(Place::mariadb(), Keep::Rows));
}

#[test]
fn passes_the_suite_on_mariadb_keeping_no_rows() {
    conformance::run(&mut OnTable::new(Place::mariadb(), Keep::None));
}

#[test]
fn passes_the_suite_on_sqlite_keeping_no_rows() {
    conformance::run(&mut OnTable::new(Place::sqlite(), Keep::None));
}

#[test]
fn passes_the_suite_where_all_columns_are_called_otherwise() {
    for place in [Place::postgres(), Place::mariadb(), Place::sqlite()] {
        conformance::run(&mut OnTable { mapped: true, ..OnTable::new(place, Keep::Rows) });
    }
}

#[test]
fn passes_the_suite_on_sqlite() {
    conformance::run(&mut OnTable::new(Place::sqlite(), Keep::Rows));
}
