//! MariaDB with one table of engine MyISAM, on a socket of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder};

use crate::data::DataSet;
use crate::engine::Result;
use crate::engines;
use crate::measure::{Built, files, folder_bytes};

pub struct MyIsam {
    child: Child,
    folder: PathBuf,
}

const STARTS_WITHIN: Duration = Duration::from_secs(60);

impl MyIsam {
    /// A new server whose files are in this folder.
    pub fn start(folder: &Path) -> Result<MyIsam> {
        let data = folder.join("data");
        std::fs::create_dir(&data)?;
        let child = Command::new("mariadbd")
            .args(["--no-defaults", "--skip-networking", "--secure-file-priv="])
            // An empty folder has no tables of rights.
            .arg("--skip-grant-tables")
            // Nothing that it may take of memory is what holds it up.
            .args(["--key-buffer-size=4G", "--myisam-sort-buffer-size=4G"])
            .args(["--bulk-insert-buffer-size=1G", "--read-buffer-size=16M"])
            .args(["--myisam-max-sort-file-size=64G", "--skip-log-bin"])
            .args(["--innodb-buffer-pool-size=16M", "--max-connections=64"])
            .arg(format!("--user={}", user()))
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--tmpdir={}", folder.display()))
            .arg(format!("--socket={}", socket(folder).display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("mariadbd: {error}; scripts/setup-bench installs it"))?;
        let server = MyIsam {
            child,
            folder: folder.to_owned(),
        };
        let began = Instant::now();
        while let Err(error) = server.connect() {
            if began.elapsed() > STARTS_WITHIN {
                return Err(format!("MariaDB does not answer: {error}").into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut connection = server.connect()?;
        connection.query_drop("CREATE DATABASE bench")?;
        Ok(server)
    }

    pub fn connect(&self) -> Result<Conn> {
        let options = OptsBuilder::new()
            .socket(Some(socket(&self.folder).display().to_string()))
            .user(Some("root"));
        Ok(Conn::new(options)?)
    }

    /// Loads the rows, until they and their index are on the disk.
    pub fn load(&self, data: &DataSet) -> Result<Built> {
        let mut connection = self.connect()?;
        connection.query_drop(format!(
            "CREATE TABLE bench.t (k VARBINARY(16) NOT NULL, v VARBINARY({}) NOT NULL, KEY (k)) ENGINE=MyISAM",
            data.value_bytes
        ))?;
        let began = Instant::now();
        connection.query_drop("ALTER TABLE bench.t DISABLE KEYS")?;
        connection.query_drop(format!(
            "LOAD DATA INFILE '{}' INTO TABLE bench.t CHARACTER SET binary FIELDS TERMINATED BY ',' IGNORE 1 LINES",
            data.csv.display()
        ))?;
        connection.query_drop("ALTER TABLE bench.t ENABLE KEYS")?;
        connection.query_drop("FLUSH TABLES")?;
        let table = self.folder.join("data/bench");
        for file in files(&table)? {
            engines::sync(&file)?;
        }
        let build_s = began.elapsed().as_secs_f64();
        let rows: Option<u64> = connection.query_first("SELECT COUNT(*) FROM bench.t")?;
        if rows != Some(data.keys) {
            return Err(format!("{rows:?} rows were loaded, not {}", data.keys).into());
        }
        Ok(Built {
            build_s,
            file_bytes: folder_bytes(&table)?,
        })
    }
}

impl Drop for MyIsam {
    fn drop(&mut self) {
        // SAFETY: the child is ours and not waited for yet.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}

/// Returns the value of MariaDB's `--user`. Without this option, MariaDB does not run as root.
fn user() -> String {
    std::env::var("USER").unwrap_or_else(|_| "root".to_owned())
}
