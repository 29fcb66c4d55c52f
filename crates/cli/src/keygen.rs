//! `larder keygen`: creates a key that signs versions, and prints the public key with which servers verify them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use larder_batch::SecretKey;
use ring::rand::{SecureRandom, SystemRandom};

use crate::failure::Failure;
use crate::output;
use crate::secret_file;

const EXAMPLES: &str = "\
Examples:
    larder keygen release.key                      creates the key, and prints the public key
    larder keygen release.key --public             prints the public key of an existing file
    larder build recs.parquet --store pymk --key member --out built/pymk --sign release.key

A server with public keys in its configuration (stores.signed_by) accepts only versions that one of them has signed. Keep the
secret key where versions are built, and not on a server: anyone who has it can sign versions.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct KeygenArgs {
    /// The file for the secret key, readable only by its owner
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the public key of an existing file
    #[arg(long)]
    public: bool,
}

pub fn run(args: &KeygenArgs) -> Result<(), Failure> {
    let key = if args.public {
        read(&args.file)?
    } else {
        create(&args.file)?
    };
    output::print_line(&key.public().to_string())
}

/// Reads the secret key from a file.
pub fn read(path: &Path) -> Result<SecretKey, Failure> {
    let text = fs::read_to_string(path)
        .map_err(Failure::io(format!("read the key {}", path.display())))?;
    text.parse()
        .map_err(|why| Failure::usage(format!("{} contains no key: {why}", path.display())))
}

fn create(path: &Path) -> Result<SecretKey, Failure> {
    let mut seed = [0; 32];
    let random = SystemRandom::new();
    random
        .fill(&mut seed)
        .map_err(|_| Failure::new("the system gives no random bytes"))?;
    let key = SecretKey::from_seed(seed);
    secret_file::create(path, &key.to_text())
        .map_err(Failure::io(format!("write the key {}", path.display())))?;
    Ok(key)
}
