//! What the program is made of: a bill of materials (CycloneDX) and the licences of all of it.
//!
//! Read from cargo's own metadata: the packages that the program links on this kind of machine, none
//! that only builds or tests need.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::program::output;
use crate::{Failure, workspace};

const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// How the names of files begin that hold a licence.
const LICENCE_FILES: [&str; 5] = ["license", "licence", "copying", "notice", "copyright"];

/// The program and all that is linked into it.
pub(super) struct BillOfMaterials {
    version: String,
    parts: Vec<Part>,
}

struct Part {
    name: String,
    version: String,
    licence: String,
    /// Of firn itself, and so under its licence.
    own: bool,
    folder: PathBuf,
    depends_on: Vec<String>,
}

impl Part {
    fn url(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

impl BillOfMaterials {
    /// Of the sources in `root`.
    pub(super) fn of(root: &Path) -> Result<Self, Failure> {
        let mut cargo = workspace::cargo(["metadata", "--format-version", "1", "--locked"]);
        cargo
            .current_dir(root)
            .args(["--filter-platform", PLATFORM]);
        Self::from_metadata(&serde_json::from_str(&output(&mut cargo)?)?)
    }

    fn from_metadata(metadata: &Value) -> Result<Self, Failure> {
        let nodes = by_id(&metadata["resolve"]["nodes"]);
        let packages = by_id(&metadata["packages"]);
        let firn = packages
            .iter()
            .find(|(_, package)| package["name"] == "firn")
            .ok_or("cargo names no package firn")?;
        let mut linked = BTreeSet::from([*firn.0]);
        let mut open = VecDeque::from([*firn.0]);
        while let Some(id) = open.pop_front() {
            let node = nodes.get(id).ok_or("a package is not resolved")?;
            open.extend(linked_by(node).filter(|id| linked.insert(id)));
        }
        let url = |id: &str| {
            let package = &packages[id];
            format!(
                "pkg:cargo/{}@{}",
                text(&package["name"]),
                text(&package["version"])
            )
        };
        let part = |id: &&str| {
            let package = &packages[id];
            let mut depends_on: Vec<_> = linked_by(nodes[id]).map(url).collect();
            depends_on.sort();
            Part {
                name: text(&package["name"]),
                version: text(&package["version"]),
                // The older way to write "or".
                licence: text(&package["license"])
                    .replace(" / ", " OR ")
                    .replace('/', " OR "),
                own: package["source"].is_null(),
                folder: Path::new(&text(&package["manifest_path"])).with_file_name(""),
                depends_on,
            }
        };
        let mut parts: Vec<Part> = linked.iter().map(part).collect();
        parts.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        if let Some(part) = parts.iter().find(|part| part.licence.is_empty()) {
            return Err(format!("{} names no licence", part.url()).into());
        }
        Ok(BillOfMaterials {
            version: text(&firn.1["version"]),
            parts,
        })
    }

    /// The program's version.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// The bill of materials, CycloneDX 1.5.
    pub(super) fn cyclonedx(&self) -> Result<String, Failure> {
        let component = |part: &Part| {
            json!({
                "type": "library",
                "bom-ref": part.url(),
                "name": part.name,
                "version": part.version,
                "purl": part.url(),
                "licenses": [{ "expression": part.licence }],
            })
        };
        let dependency = |part: &Part| json!({ "ref": part.url(), "dependsOn": part.depends_on });
        let own = format!("pkg:cargo/firn@{}", self.version);
        let others = self.parts.iter().filter(|part| part.url() != own);
        let bill = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": { "component": {
                "type": "application", "bom-ref": own, "name": "firn", "version": self.version, "purl": own,
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            }},
            "components": others.map(component).collect::<Vec<_>>(),
            "dependencies": self.parts.iter().map(dependency).collect::<Vec<_>>(),
        });
        Ok(serde_json::to_string_pretty(&bill)? + "\n")
    }

    /// Each foreign part with its licence, and each text once.
    pub(super) fn licences(&self) -> Result<String, Failure> {
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut report = String::from("What is linked into firn, and under which licence.\n\n");
        for part in self.parts.iter().filter(|part| !part.own) {
            writeln!(report, "{} {}: {}", part.name, part.version, part.licence)?;
            for text in licence_texts(&part.folder)? {
                texts.entry(text).or_default().push(part.name.clone());
            }
        }
        for (text, names) in texts {
            let line = "-".repeat(100);
            write!(
                report,
                "\n{line}\n{}\n{line}\n\n{}\n",
                names.join(", "),
                text.trim_end()
            )?;
        }
        Ok(report)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn by_id(list: &Value) -> BTreeMap<&str, &Value> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|one| Some((one["id"].as_str()?, one)))
        .collect()
}

/// What a package links: neither what builds it nor what tests it.
fn linked_by(node: &Value) -> impl Iterator<Item = &str> {
    let all = node["deps"].as_array().into_iter().flatten();
    let linked = all.filter(|dependency| {
        let mut kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
        kinds.any(|kind| kind["kind"].is_null())
    });
    linked.filter_map(|dependency| dependency["pkg"].as_str())
}

fn licence_texts(folder: &Path) -> Result<Vec<String>, Failure> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if LICENCE_FILES.iter().any(|start| name.starts_with(start)) && entry.path().is_file() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let texts = paths.iter().map(fs::read);
    let texts = texts.map(|bytes| Ok(String::from_utf8_lossy(&bytes?).replace('\r', "")));
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_lists_what_is_linked_and_not_what_tests_need() {
        let bill = BillOfMaterials::of(workspace::root()).unwrap();
        let names: Vec<_> = bill.parts.iter().map(|part| &*part.name).collect();
        assert!(names.contains(&"tokio") && names.contains(&"volume"));
        assert!(
            !names.contains(&"proptest") && !names.contains(&"oracle"),
            "{names:?}"
        );
        let json: Value = serde_json::from_str(&bill.cyclonedx().unwrap()).unwrap();
        assert_eq!(json["bomFormat"], "CycloneDX");
        let components = json["components"].as_array().unwrap();
        assert_eq!(components.len() + 1, names.len());
        let refs: BTreeSet<_> = components.iter().map(|one| text(&one["bom-ref"])).collect();
        for dependency in json["dependencies"].as_array().unwrap() {
            for on in dependency["dependsOn"].as_array().unwrap() {
                assert!(refs.contains(&text(on)), "{on}");
            }
        }
        let licences = bill.licences().unwrap();
        assert!(licences.contains("\ntokio ") && licences.contains("Permission is hereby granted"));
        assert!(!licences.contains("\nvolume "));
    }
}
