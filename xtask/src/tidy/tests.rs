//! Each rule fails on a violation of its kind, and passes without.

use std::fs;
use std::path::Path;

use super::source;

/// A repository with one crate and one page of requirements.
struct Repository(tempfile::TempDir);

impl Repository {
    fn new(name: &str, manifest: &str, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let repository = Self(folder);
        repository.write(&format!("crates/{name}/Cargo.toml"), manifest);
        for (path, text) in files {
            repository.write(&format!("crates/{name}/src/{path}"), text);
        }
        for page in ["kubestellar", "ocm", "apiserver", "spaces", "metacontroller"] {
            repository.write(&format!("docs/spec/{page}.md"), "**KS-001** to the letter, KS-010…KS-012.");
        }
        repository
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn violations(&self) -> Vec<String> {
        super::run(self.0.path()).expect("a readable repository").violations
    }
}

const LIB: (&str, &str) = ("lib.rs", "mod a;\nmod b;\npub use a::A;\n");

fn machinery(files: &[(&str, &str)]) -> Vec<String> {
    Repository::new("machinery", "[dependencies]\nserde_json.workspace = true\n", files).violations()
}

#[test]
fn files_that_use_each_other_are_a_circle() {
    let used = [LIB, ("a.rs", "use crate::b::B;\npub struct A(B);"), ("b.rs", "pub struct B;")];
    assert_eq!(machinery(&used), Vec::<String>::new());
    let circle =
        [LIB, ("a.rs", "use crate::b::B;\npub struct A(B);"), ("b.rs", "pub struct B(Box<super::A>);")];
    let found = machinery(&circle);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("a.rs uses B of") && found[0].contains("b.rs uses A of"), "{found:?}");
}

#[test]
fn groups_aliases_and_imported_modules_are_followed() {
    for b in [
        "use super::{a::{A as Other}};\npub struct B(Other);",
        "use crate::a;\npub struct B(a::A);",
        "pub fn b() -> crate::a::A { crate::a::A }\npub struct B;",
    ] {
        let found = machinery(&[LIB, ("a.rs", "use crate::b::B;\npub struct A(B);"), ("b.rs", b)]);
        assert_eq!(found.len(), 1, "{b}: {found:?}");
    }
}

#[test]
fn tests_comments_and_texts_use_nothing() {
    for b in [
        "pub struct B;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n    fn f(_: A) {}\n}\n",
        "//! See crate::a::A.\npub struct B; // crate::a::A\n",
        "pub struct B; const T: &str = \"crate::a::A\"; const R: &str = r#\"crate::a::A \" \"#;",
    ] {
        let found = machinery(&[LIB, ("a.rs", "use crate::b::B;\npub struct A(B);"), ("b.rs", b)]);
        assert_eq!(found, Vec::<String>::new(), "{b}");
    }
}

#[test]
fn a_crate_uses_no_crate_above_and_nothing_forbidden() {
    let ok = Repository::new(
        "store",
        "[dependencies]\nbytes = \"1\"\n[dev-dependencies]\nruntime.workspace = true\n",
        &[],
    );
    assert_eq!(ok.violations(), Vec::<String>::new());
    let bad = Repository::new(
        "store",
        "[dependencies]\nruntime.workspace = true\nkube = { version = \"5\" }\n",
        &[],
    );
    assert_eq!(bad.violations().len(), 2, "{:?}", bad.violations());
    let unknown = Repository::new("leftovers", "[dependencies]\n", &[]);
    assert_eq!(unknown.violations().len(), 1);
}

#[test]
fn ids_must_be_in_the_specifications() {
    let known =
        [("lib.rs", "/// KS-001, KS-011\nfn ks_012_is_known() {}\n// VKS-999 and KS-9999 are no ids\n")];
    assert_eq!(machinery(&known), Vec::<String>::new());
    let unknown = [("lib.rs", "/// KS-013\nfn ks_014_is_not() {}\n")];
    assert_eq!(machinery(&unknown).len(), 2);
}

#[test]
fn code_keeps_its_lines() {
    let text = "fn a() {\n    let _ = ('\"', '\\'', \"x\ny\");\n}\nfn b<'a>(_: &'a str) {}\n";
    let code = source::code(text);
    assert_eq!(code.lines().count(), text.lines().count());
    assert!(code.contains("fn b<'a>(_: &'a str) {}"), "{code}");
}
