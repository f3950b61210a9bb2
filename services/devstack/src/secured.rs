//! Servers that let nobody in without a certificate they trust and a password that fits.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{Result, StackError};

/// What a server needs to demand encryption and a password.
#[derive(Clone, Debug)]
pub struct Secured {
    /// PEM file: the server's certificate, for 127.0.0.1, and those between it and the authority.
    pub certificate: PathBuf,
    /// PEM file: its private key (PKCS #8).
    pub key: PathBuf,
    /// Of Redis' default user, Postgres' user `postgres`, or Kafka's user `admin`. Letters and digits.
    pub password: String,
}

impl Secured {
    /// Copies both files into a server's folder as `server.crt` and `server.key`.
    pub(crate) fn place(&self, folder: &Path) -> Result<(PathBuf, PathBuf)> {
        let copy = |from: &Path, name: &str| {
            let to = folder.join(name);
            fs::copy(from, &to).map_err(StackError::system(format!("copy {}", from.display())))?;
            Ok(to)
        };
        Ok((copy(&self.certificate, "server.crt")?, copy(&self.key, "server.key")?))
    }
}
