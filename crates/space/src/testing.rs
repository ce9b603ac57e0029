//! What unit tests share.

use store::Engine;

use crate::{Space, SpaceConfig};

/// A space called `test`, in memory.
pub(crate) async fn space_in(data: &std::path::Path) -> Space {
    let config = SpaceConfig {
        name: "test",
        data,
        url: "https://127.0.0.1:9443/spaces/test".into(),
        advertise: "127.0.0.1:9443".into(),
    };
    Space::start(&Engine::in_memory(), config).await.expect("a space")
}
