//! `larder cluster certs`: creates certificates for users without their own certificate authority.
//!
//! ```text
//!   certs/ca.pem, ca.key      the authority; anyone with ca.key can create nodes
//!   certs/a/ca.pem            the files of node a: the authority that it trusts, its certificate and its key
//!           cert.pem, key.pem
//!           names             the names in cert.pem; read by --renew
//! ```
//!
//! 1. The folder of a node or a client is created atomically, and only its user can read it.
//! 2. Nothing is overwritten. `--renew` replaces a certificate and its key by new ones, each atomically.
//! 3. Every new certificate was verified as the other side will verify it.
//!
//! The authority's certificate is not parsed: its subject is always the same, so its key suffices for signing. Step 3
//! detects an authority that was created by other means.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use tempfile::Builder;

use crate::clock;
use crate::command_line::parse_count;
use crate::failure::Failure;
use crate::output::{self, moment};
use crate::secret_file;

const EXAMPLES: &str = "\
Examples:
    larder cluster certs a=10.0.0.1 b=10.0.0.2 c=db3.example.com,10.0.0.3
    larder cluster certs d=10.0.0.4              another node, signed by the same authority
    larder cluster certs --renew a               a new certificate for node a, for the same names
    larder cluster certs --client backup         for a client, if server.tls_client_ca requires certificates

Copy the folder of each node to that node. Keep ca.key on a machine that is not a node: anyone who has it can sign certificates.
A running server uses renewed files for new connections without a restart.";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const AUTHORITY_DAYS: u32 = 3650;
const DAYS_MAX: u32 = 3650;
/// Tolerates clocks that differ.
const CLOCK_TOLERANCE: Duration = DAY;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CertsArgs {
    /// The nodes: the name of each (cluster.node), and the hosts through which others reach it
    #[arg(value_name = "NODE[=HOST,...]", required_unless_present = "clients")]
    nodes: Vec<CertSubject>,
    /// A client's name; can be repeated
    #[arg(long = "client", value_name = "NAME")]
    clients: Vec<CertSubject>,
    /// The folder for the authority, with a subfolder for each node and client
    #[arg(long, value_name = "DIR", default_value = "certs")]
    out: PathBuf,
    /// Replace existing certificates; without hosts, for the same names as before
    #[arg(long)]
    renew: bool,
    /// The validity of the certificates in days
    #[arg(long, value_name = "DAYS", default_value = "730", value_parser = parse_count::<u32>)]
    days: u32,
}

/// A node or a client, and its hosts.
#[derive(Debug, Clone, PartialEq)]
struct CertSubject {
    name: String,
    hosts: Vec<String>,
}

impl std::str::FromStr for CertSubject {
    type Err = String;

    fn from_str(text: &str) -> Result<CertSubject, String> {
        let (name, hosts) = match text.split_once('=') {
            Some((name, hosts)) => (name, hosts.split(',').map(str::trim).collect()),
            None => (text, Vec::new()),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        let is_name = (1..=64).contains(&name.len())
            && name.bytes().all(is_plain)
            && name.as_bytes()[0].is_ascii_alphanumeric();
        if !is_name {
            return Err(format!(
                "{name:?} is no name of a node: write 1 to 64 letters, digits, _, - and ., beginning with a letter or digit"
            ));
        }
        for host in [name].iter().chain(&hosts) {
            let known = ServerName::try_from(*host);
            known.map_err(|_| {
                format!("{host:?} can be in no certificate: write a host's name or an address, without a port")
            })?;
        }
        Ok(CertSubject {
            name: name.to_owned(),
            hosts: hosts.into_iter().map(str::to_owned).collect(),
        })
    }
}

#[derive(Clone, Copy, PartialEq)]
enum CertKind {
    Node,
    Client,
}

impl CertKind {
    /// The first line of `names`.
    fn label(self) -> &'static str {
        match self {
            CertKind::Node => "node",
            CertKind::Client => "client",
        }
    }
}

pub fn run(args: CertsArgs) -> Result<(), Failure> {
    if !(1..=DAYS_MAX).contains(&args.days) {
        return Err(Failure::usage(format!(
            "--days {}: write a number from 1 to {DAYS_MAX}",
            args.days
        )));
    }
    let nodes = args.nodes.iter().map(|it| (CertKind::Node, it));
    let selected: Vec<_> = nodes
        .chain(args.clients.iter().map(|it| (CertKind::Client, it)))
        .collect();
    for (at, (_, named)) in selected.iter().enumerate() {
        if selected[..at].iter().any(|(_, it)| it.name == named.name) {
            return Err(Failure::usage(format!("{} is given twice", named.name)));
        }
    }
    let mut files = Vec::new();
    for (kind, named) in &selected {
        files.push(find_certificate(&args, *kind, named)?);
    }
    let authority = Authority::open_or_create(&args)?;
    let mut signed = Vec::new();
    for ((kind, _), (folder, hosts)) in selected.iter().zip(files) {
        signed.push(authority.sign(*kind, folder, hosts, args.days)?);
    }
    authority.write()?;
    for it in &signed {
        it.write(&authority, args.renew)?;
    }
    output::print_line(&summarize(&args, &authority, &signed))
}

/// Returns the folder of a node's or client's files, which may not exist yet, and its hosts.
fn find_certificate(
    args: &CertsArgs,
    kind: CertKind,
    named: &CertSubject,
) -> Result<(PathBuf, Vec<String>), Failure> {
    let folder = args.out.join(&named.name);
    let shown = folder.display();
    match (folder.exists(), args.renew) {
        (true, false) => {
            return Err(Failure::refused(format!(
                "{shown} exists already and is not overwritten; replace its certificate with --renew, or choose another folder with --out"
            )));
        }
        (false, true) => {
            return Err(Failure::not_found(format!(
                "{shown} does not exist, so it cannot be renewed; omit --renew to create it"
            )));
        }
        _ => {}
    }
    if kind == CertKind::Client && !named.hosts.is_empty() {
        return Err(Failure::usage(format!(
            "--client {}: a client has a name only; hosts are for nodes",
            named.name
        )));
    }
    if !args.renew {
        return Ok((folder, named.hosts.clone()));
    }
    let names = folder.join("names");
    let read = fs::read_to_string(&names).map_err(Failure::io(format!("read {}", names.display())));
    let before = read?;
    let mut before = before.lines();
    if before.next() != Some(kind.label()) {
        return Err(Failure::refused(format!(
            "{shown} is not that of a {}: nodes are renewed by --renew NODE, clients by --renew --client NAME",
            kind.label()
        )));
    }
    let hosts = if named.hosts.is_empty() {
        before.map(str::to_owned).collect()
    } else {
        named.hosts.clone()
    };
    Ok((folder, hosts))
}

/// The certificate authority.
struct Authority {
    folder: PathBuf,
    /// Its certificate and key. If `is_new` is set, they have not been written yet.
    pem: String,
    key_pem: String,
    is_new: bool,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn open_or_create(args: &CertsArgs) -> Result<Authority, Failure> {
        let folder = args.out.clone();
        let [certificate, key] = ["ca.pem", "ca.key"].map(|name| folder.join(name));
        match (certificate.exists(), key.exists()) {
            (true, true) => {
                let read = |path: &Path| {
                    fs::read_to_string(path)
                        .map_err(Failure::io(format!("read {}", path.display())))
                };
                let (pem, key_pem) = (read(&certificate)?, read(&key)?);
                let signer = KeyPair::from_pem(&key_pem).map_err(|error| {
                    Failure::new(format!(
                        "{} is no key that can sign: {error}",
                        key.display()
                    ))
                })?;
                Ok(Authority {
                    folder,
                    pem,
                    key_pem,
                    is_new: false,
                    issuer: Issuer::new(authority_params(), signer),
                })
            }
            (false, false) if !args.renew => {
                let signer = new_key()?;
                let params = authority_params();
                let certificate = params.self_signed(&signer).map_err(signing_failure)?;
                Ok(Authority {
                    folder,
                    pem: certificate.pem(),
                    key_pem: signer.serialize_pem(),
                    is_new: true,
                    issuer: Issuer::new(params, signer),
                })
            }
            (false, _) => Err(missing_file(&certificate)),
            (true, false) => Err(missing_file(&key)),
        }
    }

    /// Creates a key and a certificate for it.
    fn sign(
        &self,
        kind: CertKind,
        folder: PathBuf,
        hosts: Vec<String>,
        days: u32,
    ) -> Result<SignedCertificate, Failure> {
        let name = folder.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        // A client's certificate has no names that TLS verifies, so it is never accepted as a node's.
        let names = match kind {
            CertKind::Node => [std::slice::from_ref(&name), &hosts].concat(),
            CertKind::Client => Vec::new(),
        };
        let mut params = CertificateParams::new(names).map_err(signing_failure)?;
        params.distinguished_name = distinguished_name(&name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if kind == CertKind::Node {
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        let ends_at = set_validity(&mut params, days);
        let key = new_key()?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(signing_failure)?;
        self.check(certificate.der())?;
        Ok(SignedCertificate {
            kind,
            name,
            hosts,
            folder,
            pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            ends_at,
        })
    }

    /// Checks that the authority's certificate verifies a certificate that its key has signed.
    fn check(&self, signed: &CertificateDer<'_>) -> Result<(), Failure> {
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::new(format!(
                "{} does not belong to {}, or larder did not make it, so nodes would not trust what it signs: {why}",
                self.folder.join("ca.key").display(),
                self.folder.join("ca.pem").display(),
            ))
        };
        let own = CertificateDer::from_pem_slice(self.pem.as_bytes()).map_err(|it| wrong(&it))?;
        let mut roots = RootCertStore::empty();
        roots.add(own).map_err(|it| wrong(&it))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|it| wrong(&it))?;
        let verified = verifier.verify_client_cert(signed, &[], UnixTime::now());
        verified.map(drop).map_err(|it| wrong(&it))
    }

    fn write(&self) -> Result<(), Failure> {
        if !self.is_new {
            return Ok(());
        }
        let making = || format!("make the folder {}", self.folder.display());
        private_folder(&self.folder).map_err(Failure::io(making()))?;
        // The key is written last: an interruption leaves a folder that is rejected, and no key of an authority without
        // a certificate.
        write_new(&self.folder.join("ca.pem"), &self.pem)?;
        write_new(&self.folder.join("ca.key"), &self.key_pem)
    }
}

/// A new key and certificate of a node or a client.
struct SignedCertificate {
    kind: CertKind,
    name: String,
    hosts: Vec<String>,
    folder: PathBuf,
    pem: String,
    key_pem: String,
    ends_at: u64,
}

impl SignedCertificate {
    fn write(&self, authority: &Authority, renew: bool) -> Result<(), Failure> {
        let failed =
            |error: io::Error| Failure::io(format!("write {}", self.folder.display()))(error);
        let mut names = format!("{}\n", self.kind.label());
        names.extend(self.hosts.iter().map(|host| format!("{host}\n")));
        let files = [
            ("ca.pem", &authority.pem),
            ("names", &names),
            ("key.pem", &self.key_pem),
            ("cert.pem", &self.pem),
        ];
        // In the same parent folder, so that it can be renamed to its place, and readable only by its user.
        let temporary = Builder::new()
            .prefix(".new-")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(&authority.folder);
        let temporary = temporary.map_err(failed)?;
        for (name, text) in files {
            write_new(&temporary.path().join(name), text)?;
        }
        if renew {
            for (name, _) in files {
                fs::rename(temporary.path().join(name), self.folder.join(name)).map_err(failed)?;
            }
            return Ok(());
        }
        fs::rename(temporary.path(), &self.folder).map_err(failed)?;
        // The folder no longer exists under this name.
        let _ = temporary.keep();
        Ok(())
    }
}

/// Returns the parameters of the authority's certificate. They differ only in the dates.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name("larder cluster authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, AUTHORITY_DAYS);
    params
}

fn distinguished_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// Sets the validity to `days` days from now. Returns the end, in seconds since 1970.
fn set_validity(params: &mut CertificateParams, days: u32) -> u64 {
    let now = Duration::from_secs(clock::unix_seconds());
    let end = now + DAY * days;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(CLOCK_TOLERANCE);
    params.not_after = epoch + end;
    end.as_secs()
}

fn new_key() -> Result<KeyPair, Failure> {
    KeyPair::generate().map_err(|error| Failure::new(format!("cannot make a key: {error}")))
}

fn signing_failure(error: rcgen::Error) -> Failure {
    Failure::new(format!("cannot make a certificate: {error}"))
}

fn missing_file(file: &Path) -> Failure {
    Failure::not_found(format!(
        "{} does not exist, so no certificates can be signed for the existing nodes: restore it, or create a new authority for all nodes with another --out",
        file.display()
    ))
}

fn private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    secret_file::create(path, text).map_err(Failure::io(format!("write {}", path.display())))
}

fn summarize(args: &CertsArgs, authority: &Authority, signed: &[SignedCertificate]) -> String {
    let out = args.out.display();
    let mut text = String::new();
    if authority.is_new {
        text += &format!(
            "{out}/ca.pem, {out}/ca.key: the cluster's authority. Keep ca.key where no node is.\n"
        );
    }
    for it in signed {
        let made = if args.renew { "renewed" } else { "made" };
        let hosts = match (it.kind, it.hosts.is_empty()) {
            (CertKind::Client, _) => "a client".to_owned(),
            (CertKind::Node, true) => {
                "a node; it has no host's name, so clients cannot check it".to_owned()
            }
            (CertKind::Node, false) => format!("a node, as {}", it.hosts.join(", ")),
        };
        let ends = moment(it.ends_at);
        text += &format!(
            "{out}/{}: {made} for {hosts}; valid until {ends}\n",
            it.name
        );
    }
    let is_node = |it: &&SignedCertificate| it.kind == CertKind::Node;
    if signed.iter().any(|it| is_node(&it)) {
        text += "\nCopy each node's folder to that node, for example to /etc/larder, readable only by the user that runs larder. Its configuration:\n\n  \
             [cluster]                                [server]  (TLS for clients)\n  \
             tls_ca   = \"/etc/larder/ca.pem\"          tls_cert = \"/etc/larder/cert.pem\"\n  \
             tls_cert = \"/etc/larder/cert.pem\"        tls_key  = \"/etc/larder/key.pem\"\n  \
             tls_key  = \"/etc/larder/key.pem\"\n\n";
        text += &format!(
            "Clients then check servers by {out}/ca.pem: larder --ca, redis-cli --tls --cacert, curl --cacert."
        );
    }
    if let Some(client) = signed.iter().find(|it| it.kind == CertKind::Client) {
        let folder = format!("{out}/{}", client.name);
        text += &format!(
            "\nA client shows its own: redis-cli --tls --cacert {folder}/ca.pem --cert {folder}/cert.pem --key {folder}/key.pem"
        );
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_arguments_have_a_name_and_hosts() {
        let named: CertSubject = "a=10.0.0.1, db.example.com,::1".parse().unwrap();
        assert_eq!(named.name, "a");
        assert_eq!(named.hosts, ["10.0.0.1", "db.example.com", "::1"]);
        assert_eq!("node-1".parse::<CertSubject>().unwrap().hosts, [""; 0]);
        for bad in ["", "=h", "a=", "a=h:7380", "a b", "../a", "a=h,,i", "-a"] {
            assert!(bad.parse::<CertSubject>().is_err(), "{bad}");
        }
    }
}
