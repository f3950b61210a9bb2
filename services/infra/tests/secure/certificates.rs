//! Authorities and server certificates, made anew for each test.

use std::{
    fs,
    path::{Path, PathBuf},
};

use devstack::Secured;
use openssl::{
    asn1::Asn1Time,
    bn::{BigNum, MsbOption},
    ec::{EcGroup, EcKey},
    error::ErrorStack,
    hash::MessageDigest,
    nid::Nid,
    pkey::{PKey, Private},
    x509::{
        X509, X509Builder, X509NameBuilder,
        extension::{BasicConstraints, KeyUsage, SubjectAlternativeName},
    },
};

/// Every server of these tests wants this one.
pub(crate) const PASSWORD: &str = "hunter2";

/// Signs certificates, and is trusted by whoever gets [`Authority::file`].
pub(crate) struct Authority {
    folder: tempfile::TempDir,
    certificate: X509,
    key: PKey<Private>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let make = || -> Result<_, ErrorStack> {
            let key = new_key()?;
            let mut builder = begin("a test's authority", &key)?;
            builder.append_extension(BasicConstraints::new().critical().ca().build()?)?;
            builder.append_extension(KeyUsage::new().critical().key_cert_sign().build()?)?;
            builder.sign(&key, MessageDigest::sha256())?;
            Ok((builder.build(), key))
        };
        let (certificate, key) = make().expect("OpenSSL makes an authority");
        let folder = tempfile::tempdir().expect("a folder can be made");
        write(&folder.path().join("ca.pem"), &certificate.to_pem().expect("PEM"));
        Self { folder, certificate, key }
    }

    /// Its certificate, as clients are to be given it.
    pub(crate) fn file(&self) -> String {
        self.folder.path().join("ca.pem").to_string_lossy().into_owned()
    }

    /// A certificate for 127.0.0.1, and the password of these tests.
    pub(crate) fn secured(&self) -> Secured {
        let make = || -> Result<_, ErrorStack> {
            let key = new_key()?;
            let mut builder = begin("a test's server", &key)?;
            builder.set_issuer_name(self.certificate.subject_name())?;
            let name =
                SubjectAlternativeName::new().ip("127.0.0.1").build(&builder.x509v3_context(Some(&self.certificate), None))?;
            builder.append_extension(name)?;
            builder.sign(&self.key, MessageDigest::sha256())?;
            Ok((builder.build().to_pem()?, key.private_key_to_pem_pkcs8()?))
        };
        let (certificate, key) = make().expect("OpenSSL makes a certificate");
        let place = |name: &str, content: &[u8]| -> PathBuf {
            let file = self.folder.path().join(name);
            write(&file, content);
            file
        };
        Secured { certificate: place("server.crt", &certificate), key: place("server.key", &key), password: PASSWORD.to_owned() }
    }
}

fn write(file: &Path, content: &[u8]) {
    fs::write(file, content).expect("a file can be written");
}

fn new_key() -> Result<PKey<Private>, ErrorStack> {
    PKey::from_ec_key(EcKey::generate(EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?.as_ref())?)
}

/// A certificate of a day that signs itself unless another issuer is set.
fn begin(name: &str, key: &PKey<Private>) -> Result<X509Builder, ErrorStack> {
    let mut subject = X509NameBuilder::new()?;
    subject.append_entry_by_nid(Nid::COMMONNAME, name)?;
    let subject = subject.build();
    let mut serial = BigNum::new()?;
    serial.rand(120, MsbOption::MAYBE_ZERO, false)?;
    let mut builder = X509Builder::new()?;
    builder.set_version(2)?;
    builder.set_serial_number(serial.to_asn1_integer()?.as_ref())?;
    builder.set_subject_name(&subject)?;
    builder.set_issuer_name(&subject)?;
    builder.set_pubkey(key)?;
    builder.set_not_before(Asn1Time::days_from_now(0)?.as_ref())?;
    builder.set_not_after(Asn1Time::days_from_now(1)?.as_ref())?;
    Ok(builder)
}
