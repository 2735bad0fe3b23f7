//! The structure of the sources: imports go one way, only adapters name foreign crates, no file has two concepts.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The rooms of `src/`, from the ground up. A room imports from itself and from those on lower floors.
const FLOORS: [&[&str]; 7] = [
    &["message", "protocol"],
    &["broker", "store"],
    &["tx", "receipt"],
    &["error", "counters"],
    &["confirm", "housekeeping"],
    &["check_back"],
    &["producer"],
];

/// Which crates, and which words of sqlx, only some rooms may name.
const ADAPTERS: [(&str, &[&str]); 5] = [
    ("rocketmq_", &["broker/rocketmq/"]),
    ("Postgres", &["store/", "tx/executor.rs"]),
    ("MySql", &["store/", "tx/executor.rs"]),
    ("Sqlite", &["store/", "tx/executor.rs"]),
    ("sqlx::query", &["store/"]),
];

/// More lines are a sign of two concepts.
const MAX_LINES: usize = 400;

struct Source {
    /// Relative to `src/`.
    path: String,
    text: String,
}

impl Source {
    fn room(&self) -> &str {
        self.path.split(['/', '.']).next().unwrap_or_default()
    }

    /// The lines that are code: no comments, and no documentation with its examples.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(number, line)| (number + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is readable") {
        let path = entry.expect("the entry is readable").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn sources(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    let read = |path: PathBuf| Source {
        text: fs::read_to_string(&path).expect("the file is text"),
        path: path.strip_prefix(&root).expect("found below the root").to_string_lossy().into_owned(),
    };
    files.into_iter().map(read).collect()
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

/// The rooms that a file names by `crate::room`, also within `use crate::{room, ..}`.
fn imported_rooms(source: &Source) -> Vec<String> {
    let code: String = source.code().map(|(_, line)| format!("{line}\n")).collect();
    let mut rooms = Vec::new();
    for path in code.split("crate::").skip(1) {
        if let Some(list) = path.strip_prefix('{') {
            let mut depth = 0;
            for part in list.split_inclusive(['{', '}', ',']) {
                if depth == 0 {
                    rooms
                        .push(part.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned());
                }
                depth += part.matches('{').count() as i32 - part.matches('}').count() as i32;
                if depth < 0 {
                    break;
                }
            }
        } else {
            rooms.push(path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned());
        }
    }
    rooms.retain(|room| !room.is_empty());
    rooms
}

#[test]
fn every_room_has_a_floor() {
    for source in sources("src") {
        assert!(source.room() == "lib" || floor(source.room()).is_some(), "{} stands on no floor", source.path);
    }
}

#[test]
fn imports_go_down() {
    let mut seen = 0;
    for source in sources("src").iter().filter(|source| source.room() != "lib") {
        for room in imported_rooms(source) {
            seen += 1;
            let Some(target) = floor(&room) else { panic!("{} imports {room}, which is not a room", source.path) };
            let own = floor(source.room()).expect("checked above");
            assert!(room == source.room() || target < own, "{} must not import crate::{room}", source.path);
        }
    }
    assert!(seen > 50, "only {seen} imports were found: the test looks at the wrong thing");
}

#[test]
fn only_adapters_name_what_they_adapt() {
    for source in sources("src") {
        for (word, rooms) in ADAPTERS {
            if rooms.iter().any(|room| source.path.starts_with(room)) {
                continue;
            }
            for (number, line) in source.code() {
                let names = line.match_indices(word).any(|(at, _)| {
                    // `rocketmq_tx` is the crate itself.
                    !line[at..].starts_with("rocketmq_tx")
                });
                assert!(!names, "src/{}:{number} names {word}: {line}", source.path);
            }
        }
    }
}

#[test]
fn the_broker_adapter_knows_no_database() {
    for source in sources("src").iter().filter(|source| source.path.starts_with("broker/")) {
        assert!(source.code().all(|(_, line)| !line.contains("sqlx")), "{} names sqlx", source.path);
    }
}

#[test]
fn no_file_has_two_concepts() {
    for folder in ["src", "tests", "examples"] {
        for source in sources(folder) {
            let lines = source.text.lines().count();
            assert!(lines <= MAX_LINES, "{folder}/{} has {lines} lines, over {MAX_LINES}: split it", source.path);
        }
    }
}
