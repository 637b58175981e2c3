//! Files of one crate that use each other in a circle.
//!
//! As rooms see only the rooms below them, a file sees only files below it: what two files need of
//! each other moves down into a third. A `use` line, or a path like `crate::a::f` in the code, ties
//! its file to the one that *defines* the name: a
//! re-export is followed to its end, so a parent that only re-exports ties nobody to itself.
//! `mod` declarations do not count, nor what tests use. Nor does a line in which a child names a
//! module around it: a child is a part of its parent in a file of its own, as privacy in Rust has
//! it. There is no list of exceptions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::Source;
use super::uses::{self, Import};

/// Every circle, as its files and what ties them.
pub(super) fn circles(sources: &[Source]) -> Vec<String> {
    let texts: BTreeMap<&Path, &str> = sources
        .iter()
        .filter(|source| source.is_rust())
        .map(|source| (source.path.as_path(), source.text.as_str()))
        .collect();
    let mut seen = BTreeSet::new();
    let roots = texts.keys().filter(|path| is_root(path));
    let described = roots.flat_map(|root| {
        let ties = Crate::read(root, &texts).ties();
        circles_of(&ties)
            .into_iter()
            .map(|files| describe(&files, &ties))
            .collect::<Vec<String>>()
    });
    // A file that several programs declare would be named for each of them.
    described
        .filter(|circle| seen.insert(circle.clone()))
        .collect()
}

/// Whether a crate begins here: a library, a program, a benchmark or an example.
fn is_root(path: &Path) -> bool {
    let parent = path.parent().unwrap_or(Path::new(""));
    let inside = |folder: &str| parent.ends_with(folder);
    match path.file_name().and_then(|name| name.to_str()) {
        Some("lib.rs") => inside("src"),
        Some("main.rs") => {
            let grand = parent.parent().unwrap_or(Path::new(""));
            inside("src") || grand.ends_with("benches") || grand.ends_with("examples")
        }
        Some(_) => inside("benches") || inside("examples") || inside("src/bin"),
        None => false,
    }
}

/// A module's path, from its crate's root on.
type Module = Vec<String>;

#[derive(Debug, Default)]
struct Crate {
    /// The file of every module, inline ones too.
    files: BTreeMap<Module, PathBuf>,
    items: BTreeSet<(Module, String)>,
    imports: BTreeMap<Module, Vec<Import>>,
    /// Paths in code: they tie as `use` lines do, and bind nothing.
    paths: BTreeMap<Module, Vec<Import>>,
}

/// What ties a file to another: the names it takes from there.
type Ties = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

impl Crate {
    fn read(root: &Path, texts: &BTreeMap<&Path, &str>) -> Crate {
        let mut found = Crate::default();
        let folder = root.parent().unwrap_or(Path::new("")).to_owned();
        found.add(Vec::new(), root, &folder, texts);
        found
    }

    /// Reads the file of a module, and those of its children, which lie in `folder`.
    fn add(&mut self, module: Module, file: &Path, folder: &Path, texts: &BTreeMap<&Path, &str>) {
        let Some(text) = texts.get(file) else { return };
        let declared = uses::read(text);
        let join = |within: &[String]| [&module[..], within].concat();
        self.files.insert(module.clone(), file.to_owned());
        for (within, name) in declared.inline {
            self.files
                .insert([join(&within), vec![name]].concat(), file.to_owned());
        }
        self.items.extend(
            declared
                .items
                .into_iter()
                .map(|(within, name)| (join(&within), name)),
        );
        for import in declared.imports {
            let of_module = self.imports.entry(join(&import.within)).or_default();
            of_module.push(import);
        }
        for path in declared.paths {
            let of_module = self.paths.entry(join(&path.within)).or_default();
            of_module.push(path);
        }
        for ((within, name), path) in declared.modules {
            let inside = within
                .iter()
                .fold(folder.to_owned(), |folder, name| folder.join(name));
            let beside = file.parent().unwrap_or(Path::new("")).to_owned();
            let child = [join(&within), vec![name.clone()]].concat();
            let candidates = match path {
                Some(path) => vec![(beside.join(&path), beside.join(path).with_file_name(""))],
                None => vec![
                    (inside.join(format!("{name}.rs")), inside.join(&name)),
                    (inside.join(&name).join("mod.rs"), inside.join(&name)),
                ],
            };
            for (file, folder) in candidates {
                self.add(child.clone(), &file, &folder, texts);
            }
        }
    }

    fn ties(&self) -> Ties {
        let mut ties = Ties::new();
        for (module, imports) in self.imports.iter().chain(&self.paths) {
            let Some(user) = self.files.get(module) else {
                continue;
            };
            for import in imports {
                let Some(target) = self.target(module, &import.path) else {
                    continue;
                };
                if target == user || self.encloses(target, module) {
                    continue;
                }
                let name = import.name.clone().unwrap_or("*".to_owned());
                let names = ties.entry(user.clone()).or_default();
                names.entry(target.clone()).or_default().insert(name);
            }
        }
        ties
    }

    /// Whether a file is that of a module around this one.
    fn encloses(&self, file: &Path, module: &Module) -> bool {
        let around = (0..module.len()).map(|end| module[..end].to_vec());
        around
            .filter_map(|module| self.files.get(&module))
            .any(|path| path == file)
    }

    /// The file that a `use` line or a path ties its own to; `None` if it names another crate.
    fn target(&self, module: &Module, path: &[String]) -> Option<&PathBuf> {
        self.resolve(module, path, &mut Vec::new()).or_else(|| {
            // A name that a macro makes is defined nowhere: the module's file stands for it.
            let (at, names) = self.start(module, path)?;
            let modules = (0..=names.len())
                .rev()
                .map(|end| [&at[..], &names[..end]].concat());
            let named = modules.filter(|found| found != module);
            named.filter_map(|module| self.files.get(&module)).next()
        })
    }

    /// Where a path starts, and the names that lead on from there; `None` in another crate.
    fn start<'p>(&self, module: &Module, path: &'p [String]) -> Option<(Module, &'p [String])> {
        let (mut at, mut rest) = (module.clone(), path);
        match path.first()?.as_str() {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            first => {
                at.push(first.to_owned());
                return self.files.contains_key(&at).then(|| (module.clone(), path));
            }
        }
        rest = &rest[1..];
        while rest.first().is_some_and(|word| word == "super") {
            at.pop();
            rest = &rest[1..];
        }
        Some((at, rest))
    }

    /// The file that defines what a path names. `asked` are the questions on the way here:
    /// re-exports may go in circles, too.
    fn resolve<'a>(
        &'a self,
        module: &Module,
        path: &[String],
        asked: &mut Vec<(Module, Vec<String>)>,
    ) -> Option<&'a PathBuf> {
        let question = (module.clone(), path.to_vec());
        if asked.contains(&question) {
            return None;
        }
        asked.push(question);
        // What is no module may be a name that another `use` line of this module binds.
        let (at, names) = self.start(module, path).unwrap_or((module.clone(), path));
        if names.is_empty() {
            return self.files.get(&at);
        }
        self.find(&at, names, asked)
    }

    /// Follows names from a module on: child modules, items, re-exports, globs.
    fn find<'a>(
        &'a self,
        module: &Module,
        names: &[String],
        asked: &mut Vec<(Module, Vec<String>)>,
    ) -> Option<&'a PathBuf> {
        let (first, rest) = names.split_first()?;
        let child = [module.clone(), vec![first.clone()]].concat();
        let file = self.files.get(&child);
        if file.is_some() && !rest.is_empty() {
            return self.find(&child, rest, asked);
        }
        if self.items.contains(&(module.clone(), first.clone())) {
            return self.files.get(module);
        }
        if file.is_some() {
            return file;
        }
        // A line that starts with this very name, or a glob of another crate, leads nowhere new.
        let own = |import: &&Import| {
            import.path.first() != Some(first) && import.name.is_some()
                || self.start(module, &import.path).is_some()
        };
        let imports = self.imports.get(module).map_or(&[][..], Vec::as_slice);
        let imports: Vec<&Import> = imports.iter().filter(own).collect();
        let named = imports
            .iter()
            .filter(|import| import.name.as_ref() == Some(first));
        let named = named.map(|import| [&import.path[..], rest].concat());
        let globs = imports.iter().filter(|import| import.name.is_none());
        let globs = globs.map(|import| [&import.path[..], names].concat());
        let paths: Vec<Vec<String>> = named.chain(globs).collect();
        paths
            .iter()
            .find_map(|path| self.resolve(module, path, asked))
    }
}

/// The circles: files that reach each other, and themselves, along the ties.
fn circles_of(ties: &Ties) -> Vec<BTreeSet<PathBuf>> {
    let reach = |from: &PathBuf| {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(file) = next.pop() {
            for target in ties.get(file).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(target.clone()) {
                    next.push(target);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&PathBuf, BTreeSet<PathBuf>> =
        ties.keys().map(|file| (file, reach(file))).collect();
    let circles: BTreeSet<BTreeSet<PathBuf>> = reached
        .iter()
        .filter(|(file, files)| files.contains(**file))
        .map(|(file, files)| {
            let back = |other: &&PathBuf| reached.get(other).is_some_and(|r| r.contains(*file));
            files.iter().filter(back).cloned().collect()
        })
        .collect();
    circles.into_iter().collect()
}

fn describe(files: &BTreeSet<PathBuf>, ties: &Ties) -> String {
    let mut text = format!("{} files", files.len());
    for file in files {
        let targets = ties.get(file).into_iter().flatten();
        for (target, names) in targets.filter(|(target, _)| files.contains(*target)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (file, target) = (file.display(), target.display());
            text.push_str(&format!(
                "\n        {file} -> {target}: {}",
                names.join(", ")
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| Source {
            path: format!("crates/x/src/{path}").into(),
            text: (*text).to_owned(),
        };
        circles(&files.iter().map(source).collect::<Vec<_>>())
    }

    #[test]
    fn a_planted_circle_is_found_and_its_names_are_told() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::{B, C};\npub struct A;"),
            ("b.rs", "use super::c::D;\npub struct B; pub struct C;"),
            ("c.rs", "fn f() { use crate::a::A; }\npub struct D;"),
        ];
        let circles = found(&files);
        assert_eq!(circles.len(), 1, "{circles:?}");
        assert!(circles[0].starts_with("3 files"), "{circles:?}");
        assert!(
            circles[0].contains("a.rs -> crates/x/src/b.rs: B, C"),
            "{circles:?}"
        );
    }

    #[test]
    fn a_path_in_the_code_ties_as_a_use_line_does() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b;\npub fn f() { b::g(); }"),
            ("b.rs", "pub fn g() { crate::a::f(); }"),
        ];
        assert_eq!(found(&files).len(), 1);
    }

    #[test]
    fn declarations_tests_and_other_crates_tie_nothing() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "use std::fmt; use fmt::Debug; use crate::b::B;\npub struct A;",
            ),
            (
                "b.rs",
                "pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }",
            ),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn a_parent_that_only_hands_names_on_is_in_no_circle() {
        let files = [
            ("lib.rs", "mod p;\npub use p::{A, B};"),
            ("p/mod.rs", "mod a; mod b;\npub use a::*;\npub use b::B;"),
            ("p/a.rs", "use super::B;\npub struct A;"),
            ("p/b.rs", "pub struct B;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn a_child_may_name_its_parent_and_two_children_may_not_name_each_other() {
        let files = [
            ("lib.rs", "mod p;"),
            ("p.rs", "mod a; mod b;\nuse a::A;\npub const P: u32 = 1;"),
            ("p/a.rs", "use super::P;\npub struct A;"),
            ("p/b.rs", "use super::{P, a::A};\npub struct B;"),
        ];
        assert_eq!(found(&files), [""; 0]);
        let mut files = files;
        files[2].1 = "use super::{P, b::B};\npub struct A;";
        assert_eq!(found(&files).len(), 1);
    }

    #[test]
    fn a_re_export_is_followed_to_the_file_that_defines_the_name() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;\npub use c::C;"),
            ("a.rs", "use crate::C;\npub struct A;"),
            ("b.rs", "use crate::a::A;\npub struct B;"),
            ("c.rs", "use crate::b::B;\npub struct C;"),
        ];
        let circles = found(&files);
        assert!(circles[0].starts_with("3 files"), "{circles:?}");
    }
}
