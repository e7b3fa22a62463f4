//! Where a verb finds its engine: a data directory of this machine, or a server's address.
//!
//! Command line, `-P`, environment and `WINDLASS_PROFILE` are looked at in this order, and the first that names a
//! directory or a server decides. Verbs that go through the API take the server where both are named, the others the
//! directory.

use super::connect::Connection;
use crate::config::{self, Profile};
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::store::place::StorePlace;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// An engine's place.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A data directory, and where its jobs are.
    Directory {
        dir: DataDir,
        store: StorePlace,
    },
    Address {
        url: String,
        token: Option<String>,
    },
}

impl Place {
    /// Connects; nothing where nobody serves a data directory. An address at which nobody listens is a failure.
    pub(super) fn server(&self) -> Result<Option<Connection>, Failure> {
        match self {
            Place::Directory { dir, .. } => Connection::open(dir),
            Place::Address { url, token } => match Connection::open_url(url, token.as_deref())? {
                Some(connection) => Ok(Some(connection)),
                None => Err(Failure::new(Kind::NoServer, format!("nobody listens at {url}"))
                    .hint("is the address right? windlass serve starts a server, and prints where it listens")),
            },
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Directory { dir, .. } => write!(f, "{}", dir.root().display()),
            Place::Address { url, .. } => f.write_str(url),
        }
    }
}

/// A server or a store that was named, and what named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) url: String,
    pub(super) by: String,
}

/// What was named of a place.
#[derive(Clone, Debug, Default)]
pub(super) struct Whereabouts {
    pub(super) dir: Option<PathBuf>,
    pub(super) server: Option<Named>,
    /// An address with its password: what is told of it is its own business.
    pub(super) store: Option<Named>,
    pub(super) profile: Profile,
}

impl Whereabouts {
    /// Out of the command line's own words and the environment.
    pub(super) fn find(
        dir: Option<PathBuf>,
        server: Option<String>,
        store: Option<String>,
        profile: Option<&str>,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Whereabouts, Failure> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).map(|value| value.to_string_lossy().into_owned());
        let flagged = dir.is_some() || server.is_some();
        let by_variable = text("WINDLASS_PROFILE").filter(|_| profile.is_none() && !flagged);
        let chosen = match profile.or(by_variable.as_deref()) {
            Some(name) => config::profile(name)?,
            None => Profile::default(),
        };
        let named = |url: Option<String>, by: &str| url.map(|url| Named { url, by: by.to_owned() });
        let store = named(store, "--store").or_else(|| named(text("WINDLASS_STORE"), "WINDLASS_STORE"));
        let of_profile = |by: &str| (chosen.dir.clone(), named(chosen.server.clone(), by));
        // What a job is told of its own server is for `progress` and `emit`, with a token that is good for them alone.
        // A kept worker has one with each of its jobs, and none in its environment.
        let is_a_jobs = ["WINDLASS_JOB_TOKEN", "WINDLASS_JOB_ID"].into_iter().any(|name| set(name).is_some());
        let url = text("WINDLASS_URL").filter(|_| !is_a_jobs);
        let stages = [
            (dir, named(server, "--server")),
            profile.map(|name| of_profile(&format!("the profile {name}"))).unwrap_or_default(),
            (set("WINDLASS_DIR").map(PathBuf::from), named(url, "WINDLASS_URL")),
            by_variable.as_ref().map(|name| of_profile(&format!("the profile {name}"))).unwrap_or_default(),
        ];
        let (dir, server) = stages.into_iter().find(|(dir, url)| dir.is_some() || url.is_some()).unwrap_or_default();
        Ok(Whereabouts { dir, server, store, profile: chosen })
    }

    /// What shows a server that one may use it: WINDLASS_TOKEN, or the first line of a file.
    pub(super) fn token(&self) -> Result<Option<String>, Failure> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(token) = set("WINDLASS_TOKEN") {
            return Ok(token.into_string().ok());
        }
        let file = set("WINDLASS_TOKEN_FILE").map(PathBuf::from).or_else(|| self.profile.token_file.clone());
        let Some(file) = file else { return Ok(None) };
        let text = std::fs::read_to_string(&file)
            .map_err(|e| Failure::io(format_args!("cannot read the token in {}", file.display()), &e))?;
        match text.lines().next().map(str::trim).filter(|token| !token.is_empty()) {
            Some(token) => Ok(Some(token.to_owned())),
            None => Err(Failure::new(Kind::BadData, format!("the token's file {} is empty", file.display()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(dir: Option<&str>, server: Option<&str>, variables: &[(&str, &str)]) -> (Option<String>, Option<String>) {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let found =
            Whereabouts::find(dir.map(PathBuf::from), server.map(str::to_owned), None, None, &variable).unwrap();
        (found.dir.map(|dir| dir.display().to_string()), found.server.map(|named| named.url))
    }

    #[test]
    fn the_first_that_names_a_place_decides() {
        let (url, dir) = (("WINDLASS_URL", "http://u:1"), ("WINDLASS_DIR", "/d"));
        let own = |dir: Option<&str>, url: Option<&str>| (dir.map(str::to_owned), url.map(str::to_owned));
        assert_eq!(found(None, None, &[]), own(None, None));
        assert_eq!(found(Some("/f"), None, &[url, dir]), own(Some("/f"), None), "a directory beside WINDLASS_URL");
        assert_eq!(found(None, Some("http://f:1"), &[url, dir]), own(None, Some("http://f:1")));
        assert_eq!(found(None, None, &[url, dir]), own(Some("/d"), Some("http://u:1")), "each verb takes what it can");
        assert_eq!(found(None, None, &[url, ("WINDLASS_JOB_TOKEN", "t")]), own(None, None), "that is the job's own");
        assert_eq!(found(None, None, &[url, ("WINDLASS_JOB_ID", "j-1")]), own(None, None), "so is a kept worker's");
        assert_eq!(found(None, None, &[("WINDLASS_URL", ""), dir]), own(Some("/d"), None));
    }
}
