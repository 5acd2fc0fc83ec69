//! Certificates for tests of TLS: a CA of the test's own, and certificates that it signs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// A CA that only this test trusts. Its files stand in one directory.
#[derive(Debug)]
pub struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    /// The file with its certificate.
    pub file: PathBuf,
    dir: PathBuf,
}

/// A certificate and its key, in two files of PEM format.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The file with the certificate.
    pub cert: PathBuf,
    /// The file with the private key.
    pub key: PathBuf,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// Now.
    Now,
    /// Until the first day of this year.
    UntilYear(i32),
    /// Until the year 2001.
    Past,
    /// From the year 2090 on.
    Future,
}

impl Validity {
    fn apply(self, params: &mut CertificateParams) {
        match self {
            Validity::Now => {}
            Validity::UntilYear(year) => params.not_after = date_time_ymd(year, 1, 1),
            Validity::Past => params.not_after = date_time_ymd(2001, 1, 1),
            Validity::Future => params.not_before = date_time_ymd(2090, 1, 1),
        }
    }
}

impl TestCa {
    /// Makes a CA. Its certificate is `NAME-ca.crt` in `dir`.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub fn new(dir: &Path, name: &str) -> io::Result<TestCa> {
        TestCa::new_for(dir, name, Validity::Now)
    }

    /// As [`TestCa::new`], for another time.
    ///
    /// # Errors
    /// As [`TestCa::new`].
    pub fn new_for(dir: &Path, name: &str, validity: Validity) -> io::Result<TestCa> {
        let mut params = CertificateParams::default();
        validity.apply(&mut params);
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        let file = dir.join(format!("{name}-ca.crt"));
        fs::write(&file, certificate.pem())?;
        Ok(TestCa {
            issuer: Issuer::new(params, key),
            file,
            dir: dir.to_owned(),
        })
    }

    /// Signs a certificate for these host names and IP addresses, for servers and clients alike. It
    /// is `NAME.crt` and `NAME.key` in the directory of the CA. The first of `hosts` is its common
    /// name.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub fn sign(&self, name: &str, hosts: &[&str]) -> io::Result<CertificateFiles> {
        self.sign_for(name, hosts, Validity::Now)
    }

    /// As [`TestCa::sign`], for another time.
    ///
    /// # Errors
    /// As [`TestCa::sign`].
    pub fn sign_for(
        &self,
        name: &str,
        hosts: &[&str],
        validity: Validity,
    ) -> io::Result<CertificateFiles> {
        self.write(name, &self.pem(hosts, validity)?)
    }

    /// A certificate and its key, as texts of PEM format.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn pem(&self, hosts: &[&str], validity: Validity) -> io::Result<(String, String)> {
        let uses = [
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        self.pem_for(hosts, validity, &uses)
    }

    /// Signs a certificate as [`TestCa::sign`], for clients alone.
    ///
    /// # Errors
    /// As [`TestCa::sign`].
    pub fn sign_for_clients(&self, name: &str, hosts: &[&str]) -> io::Result<CertificateFiles> {
        let uses = [ExtendedKeyUsagePurpose::ClientAuth];
        let pem = self.pem_for(hosts, Validity::Now, &uses)?;
        self.write(name, &pem)
    }

    fn write(
        &self,
        name: &str,
        (certificate, key): &(String, String),
    ) -> io::Result<CertificateFiles> {
        let files = CertificateFiles {
            cert: self.dir.join(format!("{name}.crt")),
            key: self.dir.join(format!("{name}.key")),
        };
        fs::write(&files.cert, certificate)?;
        fs::write(&files.key, key)?;
        Ok(files)
    }

    fn pem_for(
        &self,
        hosts: &[&str],
        validity: Validity,
        uses: &[ExtendedKeyUsagePurpose],
    ) -> io::Result<(String, String)> {
        let names: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
        let common_name = hosts.first().copied().unwrap_or("nameless");
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.extended_key_usages = uses.to_vec();
        params.use_authority_key_identifier_extension = true;
        validity.apply(&mut params);
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.signed_by(&key, &self.issuer);
        let certificate = certificate.map_err(io::Error::other)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}
