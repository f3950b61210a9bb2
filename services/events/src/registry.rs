//! A small client of the schema registry: look up, register, check.

use std::time::Duration;

use reqwest::header::ACCEPT;
use reqwest::{Certificate, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest wait for one answer of the registry.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Longest answer that is read, in bytes; the largest schema here has about 20 kB.
const MAX_ANSWER: usize = 4 * 1_048_576;

/// How much of a refusal's text is passed on, in characters.
const MAX_MESSAGE: usize = 1_000;

/// Why the registry gave no answer that can be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RegistryError {
    /// Not reachable, too slow, 5xx, or no JSON: it may answer later. Never cached.
    #[error("the schema registry at {url} (DOORBUSTER_REGISTRY) did not answer: {reason}")]
    Unavailable { url: String, reason: String },
    /// The registry said no (4xx other than 404), for example because a schema is incompatible or the login in the address is wrong.
    #[error("the schema registry (DOORBUSTER_REGISTRY) refused {what}: {status} {message}")]
    Refused { what: String, status: u16, message: String },
    /// The address, or the file of authorities that it names.
    #[error("the schema registry's address {url} (DOORBUSTER_REGISTRY) cannot be used: {reason}")]
    Address { url: String, reason: String },
}

/// A client of one registry (Confluent's REST API). Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    url: String,
    http: reqwest::Client,
}

impl Registry {
    /// `http[s]://[user:password@]host:port[/path]`; `ca`: a PEM file with the authorities that may have signed its certificate, instead of the
    /// system's.
    pub fn new(url: &str, ca: Option<&str>) -> Result<Self, RegistryError> {
        let wrong = |reason: String| RegistryError::Address { url: masked(url), reason };
        let parsed = reqwest::Url::parse(url).map_err(|e| wrong(format!("{e}; http://host:port is needed")))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(wrong("http://host:port or https://host:port is needed".into()));
        }
        let mut http = reqwest::Client::builder().timeout(TIMEOUT);
        if let Some(file) = ca {
            let pem = std::fs::read(file).map_err(|e| wrong(format!("{file}, named by ca=FILE: {e}")))?;
            let authorities =
                Certificate::from_pem_bundle(&pem).map_err(|e| wrong(format!("{file}, named by ca=FILE: {}", chain(&e))))?;
            http = http.tls_certs_only(authorities);
        }
        let http = http.build().map_err(|e| wrong(chain(&e)))?;
        Ok(Self { url: url.trim_end_matches('/').to_owned(), http })
    }

    /// Where this registry is, fit for logs.
    pub fn url(&self) -> String {
        masked(&self.url)
    }

    /// The id under which `subject` has exactly this schema; `None` if it does not have it.
    pub async fn id_of(&self, subject: &str, schema: &str) -> Result<Option<u32>, RegistryError> {
        let what = format!("the look-up of subject {subject}");
        let request = self.http.post(format!("{}/subjects/{subject}", self.url)).json(&SchemaText { schema: schema.into() });
        Ok(self.ask::<SchemaId>(request, &what).await?.map(|found| found.id))
    }

    /// Registers the schema under `subject` and gives its id; an identical one keeps its id.
    pub async fn register(&self, subject: &str, schema: &str) -> Result<u32, RegistryError> {
        let what = format!("the schema of subject {subject}");
        let url = format!("{}/subjects/{subject}/versions", self.url);
        let request = self.http.post(url).json(&SchemaText { schema: schema.into() });
        match self.ask::<SchemaId>(request, &what).await? {
            Some(registered) => Ok(registered.id),
            None => Err(RegistryError::Refused { what, status: 404, message: "not found".into() }),
        }
    }

    /// The text of the schema with this id; `None` if the registry answers 404.
    pub async fn schema(&self, id: u32) -> Result<Option<String>, RegistryError> {
        let request = self.http.get(format!("{}/schemas/ids/{id}", self.url));
        let found: Option<SchemaText> = self.ask(request, &format!("schema id {id}")).await?;
        Ok(found.map(|found| found.schema))
    }

    /// Every version of `subject`, the oldest first; none where the registry does not have the subject.
    pub async fn versions(&self, subject: &str) -> Result<Vec<SchemaVersion>, RegistryError> {
        let (url, what) = (format!("{}/subjects/{subject}/versions", self.url), format!("the versions of subject {subject}"));
        let mut versions = Vec::new();
        for version in self.ask::<Vec<u32>>(self.http.get(&url), &what).await?.unwrap_or_default() {
            // One that is gone was deleted in between.
            versions.extend(self.ask::<SchemaVersion>(self.http.get(format!("{url}/{version}")), &what).await?);
        }
        Ok(versions)
    }

    /// Sends one request. 404: `None`.
    async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder, what: &str) -> Result<Option<T>, RegistryError> {
        let unavailable = |reason: String| RegistryError::Unavailable { url: self.url(), reason };
        let request = request.header(ACCEPT, "application/vnd.schemaregistry.v1+json, application/json");
        let mut response = request.send().await.map_err(|e| unavailable(chain(&e)))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| unavailable(chain(&e)))? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(unavailable(format!("the answer for {what} is longer than {MAX_ANSWER} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        match status {
            StatusCode::NOT_FOUND => Ok(None),
            _ if status.is_success() => match serde_json::from_slice(&body) {
                Ok(answer) => Ok(Some(answer)),
                Err(e) => Err(unavailable(format!("the answer for {what} is not what was asked for: {e}"))),
            },
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Err(unavailable(format!("{status} for {what}"))),
            _ if status.is_client_error() => {
                let message = String::from_utf8_lossy(&body).chars().take(MAX_MESSAGE).collect();
                Err(RegistryError::Refused { what: what.to_owned(), status: status.as_u16(), message })
            }
            _ => Err(unavailable(format!("{status} for {what}"))),
        }
    }
}

/// One version of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct SchemaVersion {
    /// 1, 2, 3, ... within the subject.
    pub version: u32,
    /// The schema's id, which records name.
    pub id: u32,
}

#[derive(Serialize, Deserialize)]
struct SchemaText {
    schema: String,
}

#[derive(Deserialize)]
struct SchemaId {
    id: u32,
}

/// An error with its causes; reqwest's own text leaves them out.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The address without user and password, which errors and logs must not show.
fn masked(url: &str) -> String {
    match (url.split_once("://"), url.rfind('@')) {
        (Some((scheme, _)), Some(at)) => format!("{scheme}://***@{}", &url[at + 1..]),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        let registry = Registry::new("http://user:p%40ss@127.0.0.1:1/apis/ccompat/v7/", None).unwrap();
        assert_eq!(registry.url(), "http://***@127.0.0.1:1/apis/ccompat/v7");
        assert_eq!(masked("http://127.0.0.1:8081"), "http://127.0.0.1:8081");
    }
}
