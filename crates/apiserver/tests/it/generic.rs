//! The generic resource handler asks strategies; it knows no kind by name.

use std::collections::BTreeSet;
use std::path::Path;

/// AS-001: what a kind does differently is a property of its row, so that built-in kinds and custom resources take the
/// same path.
#[test]
fn as_001_handlers_know_no_kind_by_name() {
    let catalog = kubestellar_apiserver::builtin::catalog();
    let plurals: BTreeSet<&str> = catalog.all().map(|d| d.plural.as_str()).collect();
    let mut found = Vec::new();
    for folder in ["handlers", "server", "watch"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder);
        for file in std::fs::read_dir(folder).expect("sources") {
            let path = file.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).expect("a source file");
            let named = plurals.iter().filter(|plural| text.contains(&format!("\"{plural}\"")));
            found.extend(named.map(|plural| format!("{name} names {plural}")));
        }
    }
    assert!(found.is_empty(), "{found:?}");
}
