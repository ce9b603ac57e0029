//! A credential of one space is nothing in another.

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client, Config};

use crate::support::{Installation, until_one};

/// SP-061 (SP-A-17): the administrator's certificate and the token of a service account are good in their own
/// space and 401 in every other, while the TLS of all verifies against the one CA.
#[tokio::test(flavor = "multi_thread")]
async fn sp_061_credentials_of_one_space_are_401_in_another() {
    let ks = Installation::new();
    let _server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let spaces = ["its1", "wds1", "cluster1"];
    for home in spaces {
        let own = ks.config(home).await;
        let client = Client::try_from(own.clone()).unwrap();
        let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
        until_one(&accounts, "default", "the default service account", |_| true).await;
        let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
        let issued =
            accounts.create_token_request("default", &PostParams::default(), &request).await.unwrap();
        let mut by_token = Config::new(own.cluster_url.clone());
        by_token.root_cert.clone_from(&own.root_cert);
        by_token.auth_info.token = Some(issued.status.unwrap().token.into());
        for other in spaces {
            let there = ks.config(other).await;
            let by_certificate = code(&own, &there).await;
            assert_eq!(
                by_certificate,
                if home == other { 200 } else { 401 },
                "administrator of {home} in {other}"
            );
            // The default service account may not read Secrets; its own space knows at least who asks.
            assert_eq!(
                code(&by_token, &there).await,
                if home == other { 403 } else { 401 },
                "token of {home} in {other}"
            );
        }
    }
}

/// What listing the Secrets of another space is answered with.
async fn code(credentials: &Config, there: &Config) -> u16 {
    let mut config = credentials.clone();
    config.cluster_url.clone_from(&there.cluster_url);
    // Without it the request would be for both spaces (SP-056), and refused before anybody looks at the credential.
    config.tls_server_name.clone_from(&there.tls_server_name);
    let secrets: Api<Secret> = Api::all(Client::try_from(config).unwrap());
    match secrets.list(&kube::api::ListParams::default()).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error:?}"),
    }
}
