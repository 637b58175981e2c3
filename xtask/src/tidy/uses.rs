//! What one Rust file says of its modules: which it declares, which items it defines, and what its
//! `use` lines and the paths in its code name.
//!
//! It reads tokens, not syntax trees: enough for declarations, and no parser has to be built for
//! it. Code under `#[cfg(test)]` is left out: what tests use ties no file to another.

/// A `use` of one name, after its braces are taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    /// The inline modules of the file that the line stands in.
    pub(super) within: Vec<String>,
    /// As written: `crate`, `self`, `super`, or a name first. For a glob, without the star.
    pub(super) path: Vec<String>,
    /// The name it binds; `None` for a glob.
    pub(super) name: Option<String>,
}

/// An item or a module of the file: the inline modules around it, and its name.
pub(super) type ItemPath = (Vec<String>, String);

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    /// Modules in files of their own, and the file if an attribute names one.
    pub(super) modules: Vec<(ItemPath, Option<String>)>,
    /// Inline modules.
    pub(super) inline: Vec<ItemPath>,
    /// Functions, types, constants and macros, outside functions and impls.
    pub(super) items: Vec<ItemPath>,
    pub(super) imports: Vec<Import>,
    /// Paths in signatures and bodies, like `crate::a::f` and `a::f`: they bind no name.
    pub(super) paths: Vec<Import>,
}

/// Words that come before the name of an item.
const ITEM_WORDS: [&str; 8] = [
    "fn", "struct", "enum", "union", "trait", "type", "const", "static",
];

pub(super) fn read(text: &str) -> Declarations {
    let mut reader = Reader {
        tokens: tokens(text),
        at: 0,
        found: Declarations::default(),
    };
    reader.module(&mut Vec::new());
    reader.found
}

struct Reader {
    tokens: Vec<String>,
    at: usize,
    found: Declarations,
}

impl Reader {
    fn peek(&self) -> Option<&str> {
        self.tokens.get(self.at).map(String::as_str)
    }

    fn next(&mut self) -> Option<String> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    /// The body of a module, up to and with the brace that closes it.
    fn module(&mut self, within: &mut Vec<String>) {
        let mut file = None;
        while let Some(token) = self.next() {
            match token.as_str() {
                "}" => return,
                "{" => self.block(within),
                "#" => match self.attribute() {
                    Attribute::TestsOnly => self.skip_item(),
                    Attribute::Path(path) => file = Some(path),
                    Attribute::Other => {}
                },
                "mod" => self.module_item(within, file.take()),
                "use" => self.import(within),
                "macro_rules" => {
                    self.next();
                    self.item(within);
                }
                word if ITEM_WORDS.contains(&word) => self.item(within),
                _ => self.path(within, token),
            }
        }
    }

    /// A block that is no module: its `use` lines and paths count, not what it defines.
    fn block(&mut self, within: &[String]) {
        let mut depth = 1;
        while depth > 0 {
            let token = self.next();
            match token.as_deref() {
                None => return,
                Some("{") => depth += 1,
                Some("}") => depth -= 1,
                Some("use") => self.import(within),
                Some("#") => {
                    if matches!(self.attribute(), Attribute::TestsOnly) {
                        self.skip_item();
                    }
                }
                Some(_) => self.path(within, token.unwrap_or_default()),
            }
        }
    }

    /// The rest of a path in code, if its first word begins one.
    fn path(&mut self, within: &[String], first: String) {
        let is_name = |token: &str| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let mut path = vec![first];
        while is_name(path.last().map_or("", String::as_str)) && self.peek() == Some("::") {
            let Some(word) = self.tokens.get(self.at + 1).filter(|word| is_name(word)) else {
                break;
            };
            path.push(word.clone());
            self.at += 2;
        }
        if path.len() > 1 {
            let name = Some(path.join("::"));
            let within = within.to_vec();
            self.found.paths.push(Import { within, path, name });
        }
    }

    fn module_item(&mut self, within: &mut Vec<String>, file: Option<String>) {
        let Some(name) = self.next() else { return };
        match self.next().as_deref() {
            Some(";") => self.found.modules.push(((within.clone(), name), file)),
            Some("{") => {
                self.found.inline.push((within.clone(), name.clone()));
                within.push(name);
                self.module(within);
                within.pop();
            }
            _ => {}
        }
    }

    fn item(&mut self, within: &[String]) {
        // `const fn`, `static mut`: the name comes after the second word.
        if self
            .peek()
            .is_some_and(|word| ITEM_WORDS.contains(&word) || word == "mut")
        {
            self.next();
        }
        if let Some(name) = self.next() {
            self.found.items.push((within.to_vec(), name));
        }
    }

    /// What stands in the brackets of an attribute; the `#` is behind.
    fn attribute(&mut self) -> Attribute {
        if self.peek() == Some("!") {
            self.next();
        }
        if self.peek() != Some("[") {
            return Attribute::Other;
        }
        let (mut depth, mut words) = (0, Vec::new());
        while let Some(token) = self.next() {
            match token.as_str() {
                "[" => depth += 1,
                "]" => depth -= 1,
                _ => words.push(token),
            }
            if depth == 0 {
                break;
            }
        }
        let test = words.iter().position(|word| word == "test");
        let tests_only = test.is_some_and(|at| at >= 2 && words[at - 2] != "not")
            && !words.contains(&"any".to_owned());
        match words.first().map(String::as_str) {
            Some("cfg") if tests_only => Attribute::TestsOnly,
            Some("path") => Attribute::Path(words[2].trim_matches('"').to_owned()),
            _ => Attribute::Other,
        }
    }

    /// An item that is left out: to its semicolon or comma, or to the end of its block.
    fn skip_item(&mut self) {
        let mut depth = 0;
        while let Some(token) = self.peek().map(str::to_owned) {
            let closes = matches!(token.as_str(), "}" | ")" | "]");
            if closes && depth == 0 {
                return;
            }
            self.at += 1;
            match token.as_str() {
                "{" | "(" | "[" => depth += 1,
                ";" | "," if depth == 0 => return,
                _ if closes => depth -= 1,
                _ => {}
            }
            if depth == 0 && token == "}" {
                return;
            }
        }
    }

    fn import(&mut self, within: &[String]) {
        // `impl Trait + use<'a>` is no import.
        if self.peek() != Some("<") {
            self.tree(within, &mut Vec::new());
        }
    }

    /// One branch of a use tree, up to its comma, closing brace or semicolon, which stay.
    fn tree(&mut self, within: &[String], path: &mut Vec<String>) {
        let length = path.len();
        let mut name = None;
        loop {
            match self.peek() {
                None | Some(";" | "," | "}") => break,
                Some("::") => self.at += 1,
                Some("{") => {
                    self.at += 1;
                    while !matches!(self.peek(), None | Some("}")) {
                        self.tree(within, path);
                        if self.peek() == Some(",") {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    path.truncate(length);
                    return;
                }
                Some("*") => {
                    self.at += 1;
                    self.push_import(within, path, None);
                    path.truncate(length);
                    return;
                }
                Some("as") => {
                    self.at += 1;
                    name = self.next();
                }
                Some(_) => path.extend(self.next()),
            }
        }
        // `a::{self}` names `a`.
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = name.or_else(|| path.last().cloned());
        self.push_import(within, path, name);
        path.truncate(length);
    }

    fn push_import(&mut self, within: &[String], path: &[String], name: Option<String>) {
        self.found.imports.push(Import {
            within: within.to_vec(),
            path: path.to_vec(),
            name,
        });
    }
}

enum Attribute {
    /// What follows is compiled for tests only.
    TestsOnly,
    /// The file of the module that follows.
    Path(String),
    Other,
}

/// Names, strings and punctuation, without comments. `::` is one token.
pub(super) fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => block_comment(rest),
            _ if first.is_whitespace() => {
                rest = &rest[first.len_utf8()..];
                continue;
            }
            '"' => string(rest, 1),
            '\'' => character(rest),
            _ if raw_string(rest).is_some() => raw_string(rest).unwrap_or(1),
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        if !rest.starts_with("//") && !rest.starts_with("/*") {
            tokens.push(rest[..length].to_owned());
        }
        rest = &rest[length..];
    }
    tokens
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// Length of a string literal whose content begins at `at`.
fn string(text: &str, at: usize) -> usize {
    let mut escaped = false;
    for (index, c) in text[at..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + index + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of a character literal, or one for the quote of a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => text[3..].find('\'').map_or(text.len(), |end| end + 4),
        (Some(_), Some((end, '\''))) => end + 1,
        _ => 1,
    }
}

/// Length of a literal like `r#"..."#`, with `b` or `c` before it too.
fn raw_string(text: &str) -> Option<usize> {
    let head = text.trim_start_matches(['b', 'c']);
    let prefix = text.len() - head.len();
    let hashes = head.strip_prefix('r')?;
    let content = hashes.trim_start_matches('#').strip_prefix('"')?;
    let count = hashes.len() - content.len() - 1;
    let close = format!("\"{}", "#".repeat(count));
    let end = content.find(&close)?;
    Some(prefix + 1 + count + 1 + end + close.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(text: &str) -> Vec<String> {
        let line = |import: Import| {
            let name = import.name.unwrap_or("*".to_owned());
            format!("{}={name}", import.path.join("::"))
        };
        read(text).imports.into_iter().map(line).collect()
    }

    #[test]
    fn a_use_tree_is_taken_apart() {
        assert_eq!(
            imports("pub(crate) use crate::a::{self, b::{C, D as E}, f::*};\nuse std::io;"),
            [
                "crate::a=a",
                "crate::a::b::C=C",
                "crate::a::b::D=E",
                "crate::a::f=*",
                "std::io=io"
            ]
        );
        assert_eq!(imports("fn f() { if x { use super::y; } }"), ["super::y=y"]);
    }

    #[test]
    fn a_path_in_a_signature_or_a_body_is_found_and_binds_nothing() {
        let found = read(
            "fn f(x: crate::a::A) -> Vec<u8> { b::c::<u8>(x).map(Vec::len) }\n#[cfg(test)] fn t() { d::e() }",
        );
        let paths: Vec<String> = found.paths.iter().map(|p| p.path.join("::")).collect();
        assert_eq!(paths, ["crate::a::A", "b::c", "Vec::len"]);
        assert_eq!(found.imports, []);
    }

    #[test]
    fn code_of_tests_comments_and_strings_are_no_declarations() {
        let text = r##"
            // use crate::a;
            /* use /* nested */ crate::b; */
            const TEXT: &str = "use crate::c;";
            const RAW: &str = r#"use crate::"d";"#;
            fn f<'a>(c: char) -> impl Sized + use<'a> { c == '"' || c == '\'' }
            #[cfg(test)]
            use crate::e;
            #[cfg(all(test, not(feature = "loom")))]
            mod tests { use crate::f; }
            #[cfg(not(test))]
            use crate::g;
        "##;
        assert_eq!(imports(text), ["crate::g=g"]);
    }

    #[test]
    fn items_and_modules_are_found_where_they_are_declared() {
        let found = read(
            "#[path = \"other.rs\"]\nmod a;\npub mod b { pub(crate) struct C; impl C { fn no() {} } }\n\
             const fn d() {}\nmacro_rules! e { () => {} }",
        );
        assert_eq!(
            found.modules,
            [((vec![], "a".to_owned()), Some("other.rs".to_owned()))]
        );
        assert_eq!(found.inline, [(vec![], "b".to_owned())]);
        let names: Vec<String> = found.items.iter().map(|(_, name)| name.clone()).collect();
        assert_eq!(names, ["C", "d", "e"]);
        assert_eq!(found.items[0].0, ["b"]);
    }
}
