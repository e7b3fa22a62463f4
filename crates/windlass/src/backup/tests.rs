//! Backups of a directory with a store, damage of every byte, and names of every length.

use super::*;
use crate::data_dir::boot_id;
use crate::store::embedded::Embedded;

fn data_dir(place: &Path) -> DataDir {
    let dir = DataDir::open(&place.join("data")).unwrap();
    drop(Embedded::open(&dir, &boot_id()).unwrap());
    fs::write(dir.quarantine().join("inbox.log"), b"damage\n").unwrap();
    fs::write(dir.inbox().join("a".repeat(200)), vec![7; 1500]).unwrap();
    fs::write(dir.inbox().join(format!("b{}", "é".repeat(60))), b"").unwrap();
    fs::write(dir.root().join("audit.log"), b"who\n").unwrap();
    dir
}

fn listing(root: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for folder in ["", "inbox", "output", "quarantine", "archive"] {
        for (name, path) in regular_files(&root.join(folder)).unwrap() {
            if !LEFT_OUT.contains(&name.as_str()) {
                found.push((format!("{folder}/{name}"), fs::read(path).unwrap()));
            }
        }
    }
    found
}

#[test]
fn both_forms_come_back_as_they_were_with_another_epoch() {
    let place = tempfile::tempdir().unwrap();
    let dir = data_dir(place.path());
    let config = place.path().join("some.toml");
    fs::write(&config, "# mine\n").unwrap();
    fs::create_dir(place.path().join("folder")).unwrap();
    for form in ["file", "folder"] {
        let backup = place.path().join(form);
        let made = make(&dir, Some(&config), &backup).unwrap();
        assert_eq!(made.files, verify(&backup).unwrap());
        let new = place.path().join(format!("new-{form}"));
        assert_eq!(restore(&backup, &new, false).unwrap(), None);
        assert_eq!(listing(&new), listing(dir.root()));
        assert_eq!(fs::read(new.join("windlass.toml")).unwrap(), b"# mine\n");
        let restored = DataDir::open(&new).unwrap();
        let epoch = |dir: &DataDir| -> i64 {
            let db = rusqlite::Connection::open(dir.state_db()).unwrap();
            db.query_row("SELECT epoch FROM state", [], |row| row.get(0)).unwrap()
        };
        assert_ne!(epoch(&restored), epoch(&dir));
        let left: Vec<_> = fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "nothing is left beside: {left:?}");
    }
}

#[test]
fn what_is_there_is_not_overwritten() {
    let place = tempfile::tempdir().unwrap();
    let dir = data_dir(place.path());
    let backup = place.path().join("b");
    make(&dir, None, &backup).unwrap();
    assert_eq!(make(&dir, None, &backup).unwrap_err().kind, Kind::CannotCreate);
    assert_eq!(make(&dir, None, dir.root()).unwrap_err().kind, Kind::CannotCreate);
    assert_eq!(restore(&backup, dir.root(), false).unwrap_err().kind, Kind::CannotCreate);
    let held = dir.lock().unwrap();
    assert_eq!(restore(&backup, dir.root(), true).unwrap_err().kind, Kind::TryLater, "somebody works in it");
    drop(held);
    let aside = restore(&backup, dir.root(), true).unwrap().unwrap();
    assert!(aside.join("state.db").exists() && dir.state_db().exists());
    let empty = place.path().join("empty");
    fs::create_dir(&empty).unwrap();
    restore(&backup, &empty, false).unwrap();
}

/// A flipped bit or a cut anywhere that matters is found before anything is written.
#[test]
fn damage_is_found_before_anything_is_written() {
    let place = tempfile::tempdir().unwrap();
    let dir = data_dir(place.path());
    let backup = place.path().join("b");
    make(&dir, None, &backup).unwrap();
    let bytes = fs::read(&backup).unwrap();
    let (new, bad) = (place.path().join("new"), place.path().join("bad"));
    for at in (0..bytes.len() - 2 * pack::BLOCK).step_by(509) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        if damaged == bytes {
            continue;
        }
        fs::write(&bad, &damaged).unwrap();
        match restore(&bad, &new, false) {
            Err(failure) => assert_eq!(failure.kind, Kind::BadData, "{at}: {failure}"),
            // Only a byte that means nothing: the padding behind a file.
            Ok(_) => fs::remove_dir_all(&new).unwrap(),
        }
        assert!(!new.exists());
    }
    for length in (0..bytes.len() - 2 * pack::BLOCK).step_by(4093) {
        fs::write(&bad, &bytes[..length]).unwrap();
        assert_eq!(restore(&bad, &new, false).unwrap_err().kind, Kind::BadData, "cut at {length}");
        assert!(!new.exists());
    }
    fs::write(&bad, b"something else").unwrap();
    assert_eq!(verify(&bad).unwrap_err().kind, Kind::BadData);
    assert_eq!(verify(&place.path().join("none")).unwrap_err().kind, Kind::NoInput);
}

#[test]
fn a_newer_backup_and_names_that_leave_the_directory_are_refused() {
    let head = "windlass backup 2\nmade now turn 1\n";
    assert_eq!(Manifest::parse(&Manifest::default().to_text(head)).unwrap_err().kind, Kind::Version);
    for name in ["../x", "/x", "a/../x", "a/b/c", "", ".x", "a/", "MANIFEST", "a\nb"] {
        assert!(!manifest::is_safe(name), "{name}");
    }
}
