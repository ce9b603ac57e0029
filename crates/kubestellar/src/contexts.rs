//! Finds a context for a command: in the kubeconfig that the user names, or else in the user's files and in that of the installation.

use std::path::{Path, PathBuf};

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig, NamedContext};

use crate::datadir::DataDir;
use crate::exit::{Exit, Failure, chain, not_running};
use crate::kubeconfig;
use crate::shape::Shape;

/// Where a command looks for contexts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// `--kubeconfig`: this file and no other.
    pub(crate) asked: Option<PathBuf>,
    /// The installation, if there may be one.
    pub(crate) data: Option<DataDir>,
    /// Whether the user has named the installation, by flag or environment. Then contexts of other installations are never used.
    pub(crate) named: bool,
}

/// The contexts that a command may use.
#[derive(Debug)]
pub(crate) struct Contexts {
    /// The first one that has a context counts.
    configs: Vec<Kubeconfig>,
    /// The command that starts the installation.
    start: String,
}

impl Contexts {
    /// Reads the files.
    ///
    /// # Errors
    /// The file that the user named is missing; a file cannot be read.
    pub(crate) fn read(sources: &Sources) -> Result<Self, Failure> {
        let start =
            sources.data.as_ref().map_or_else(|| "kubestellar up".to_owned(), |data| data.command("up"));
        if let Some(file) = &sources.asked {
            must_exist(file)?;
            return Ok(Self { configs: vec![merged(std::slice::from_ref(file))?], start });
        }
        let (mut own, mut id) = (Kubeconfig::default(), None);
        if let Some(data) = &sources.data {
            own = merged(&[data.kubeconfig()])?;
            id = Shape::load(data)?.map(|shape| shape.installation);
        }
        let users = merged(&kubeconfig::files(None)?)?;
        Ok(Self { configs: ordered(users, own, id.as_deref(), sources.named), start })
    }

    /// Returns the kubeconfig that has a context; `flag` is the one that names another.
    pub(crate) fn find(&self, context: &str, flag: &str) -> Result<&Kubeconfig, Failure> {
        let has = |config: &&Kubeconfig| config.contexts.iter().any(|it| it.name == context);
        self.configs.iter().find(has).ok_or_else(|| {
            let all = self.configs.iter().flat_map(|config| &config.contexts);
            let mut known: Vec<_> = all.map(|it| it.name.as_str()).collect();
            known.sort_unstable();
            known.dedup();
            if known.is_empty() {
                return not_running(format!("using context {context}"), &self.start);
            }
            let hint = format!("name one with {flag}; there are {}", known.join(", "));
            Failure::new(Exit::NotFound, format!("using context {context}"), "no kubeconfig has it")
                .hint(hint)
        })
    }
}

/// Fails if a file that the user named is missing.
pub(crate) fn must_exist(file: &Path) -> Result<(), Failure> {
    let what = || format!("reading the kubeconfig {}", file.display());
    match std::fs::metadata(file) {
        Ok(found) if found.is_dir() => Err(Failure::new(Exit::Failed, what(), "it is a directory")),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Failure::new(Exit::NotFound, what(), "there is no such file"))
        }
        Err(error) => Err(Failure::new(Exit::Failed, what(), error)),
    }
}

/// A client for a context of a kubeconfig.
pub(crate) async fn client(config: &Kubeconfig, context: &str) -> Result<Client, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::new(Exit::Failed, format!("using context {context}"), chain(error))
    };
    let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
    let config = kube::Config::from_custom_kubeconfig(config.clone(), &options).await;
    runtime::connect::client(config.map_err(|e| failed(&e))?).map_err(|e| failed(&e))
}

/// Returns the space that the mark of a context names (SP-096), or else the context's name.
pub(crate) fn space_of(config: &Kubeconfig, context: &str) -> String {
    let named = config.contexts.iter().find(|it| it.name == context);
    named.and_then(|it| mark(it, "space")).unwrap_or(context).to_owned()
}

/// Merges the existing files as kubectl does: the first file wins.
fn merged(files: &[PathBuf]) -> Result<Kubeconfig, Failure> {
    let mut all = Kubeconfig::default();
    for file in files.iter().filter(|file| file.exists()) {
        let broken = |error: &dyn std::error::Error| {
            Failure::new(Exit::Failed, format!("reading the kubeconfig {}", file.display()), chain(error))
        };
        let next = Kubeconfig::read_from(file).map_err(|error| broken(&error))?;
        all = all.merge(next).map_err(|error| broken(&error))?;
    }
    Ok(all)
}

/// The kubeconfigs in the order in which they count. The user's come first, as for kubectl, unless the user has named the
/// installation. Its own file is newer than its entries elsewhere; `id` is its identity.
fn ordered(mut users: Kubeconfig, own: Kubeconfig, id: Option<&str>, named: bool) -> Vec<Kubeconfig> {
    users.contexts.retain(|context| match mark(context, "installation") {
        Some(of) if Some(of) == id => own.contexts.iter().all(|it| it.name != context.name),
        Some(_) => !named,
        None => true,
    });
    if named { vec![own, users] } else { vec![users, own] }
}

/// A field of the mark of an installation on a context.
fn mark<'a>(context: &'a NamedContext, field: &str) -> Option<&'a str> {
    let mut extensions = context.context.as_ref()?.extensions.as_ref()?.iter();
    extensions.find(|it| it.name == kubeconfig::MARK)?.extension.get(field)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Kubeconfig {
        Kubeconfig::from_yaml(text).unwrap()
    }

    fn contexts(configs: Vec<Kubeconfig>) -> Contexts {
        Contexts { configs, start: "kubestellar up".into() }
    }

    /// SP-095, SP-096: a context that had to give way keeps its space in its mark.
    #[test]
    fn sp_096_the_mark_names_the_space() {
        let file = config(
            "contexts: [{name: wds1-kubestellar, context: {cluster: c, extensions: [{name: kubestellar.io, extension: {installation: i, space: wds1}}]}}, {name: plain, context: {cluster: c}}]",
        );
        assert_eq!(space_of(&file, "wds1-kubestellar"), "wds1");
        assert_eq!(space_of(&file, "plain"), "plain");
        let all = contexts(vec![Kubeconfig::default(), file]);
        assert!(all.find("plain", "--wds").is_ok());
        let missing = all.find("wds1", "--wds").unwrap_err();
        assert_eq!(missing.exit, Exit::NotFound);
        assert!(missing.hint.unwrap().contains("plain, wds1-kubestellar"));
        assert_eq!(contexts(vec![]).find("wds1", "--wds").unwrap_err().exit, Exit::NotRunning);
    }

    /// SP-096: whoever names an installation never gets a context of another one; and the installation's own file counts before
    /// an older entry elsewhere.
    #[test]
    fn sp_096_contexts_of_other_installations_are_not_taken() {
        let users = config(
            "contexts: [{name: wds1, context: {cluster: a, extensions: [{name: kubestellar.io, extension: {installation: other, space: wds1}}]}},
             {name: its1, context: {cluster: stale, extensions: [{name: kubestellar.io, extension: {installation: mine, space: its1}}]}},
             {name: edge, context: {cluster: e}}]",
        );
        let own = config("contexts: [{name: its1, context: {cluster: fresh}}]");
        let cluster = |named: bool, context: &str| {
            let all = contexts(ordered(users.clone(), own.clone(), Some("mine"), named));
            let found = all.find(context, "--wds").ok()?;
            let context = found.contexts.iter().find(|it| it.name == context)?;
            Some(context.context.as_ref()?.cluster.clone())
        };
        for (named, wds1) in [(true, None), (false, Some("a"))] {
            assert_eq!(cluster(named, "wds1").as_deref(), wds1);
            assert_eq!(cluster(named, "its1").as_deref(), Some("fresh"));
            assert_eq!(cluster(named, "edge").as_deref(), Some("e"));
        }
        let nothing = ordered(users, Kubeconfig::default(), None, true);
        assert!(contexts(nothing).find("wds1", "--wds").is_err(), "nor where there is no installation");
    }

    /// SP-083: a named file that is missing is said to be missing.
    #[test]
    fn sp_083_a_missing_kubeconfig_is_named() {
        let sources = Sources { asked: Some("/nope/config".into()), ..Sources::default() };
        let failure = Contexts::read(&sources).unwrap_err();
        assert_eq!(failure.exit, Exit::NotFound);
        assert!(failure.to_string().contains("/nope/config: there is no such file"), "{failure}");
    }
}
