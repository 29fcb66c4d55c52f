//! SQLite in this process. Loads Debian's shared library at run time, so that builds do not need it.
//!
//! There is no server and no client: a thread executes the statements, and reads each column of each row. The measured
//! quantity is the processor time of that thread.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use larder_types::Random;

use super::hotels::Hotels;
use super::systems::{Question, draw_subject};
use crate::Result;

const LIBRARY: &CStr = c"libsqlite3.so.0";
const ROW: c_int = 100;
const DONE: c_int = 101;
/// Read and write, create if missing, without a mutex.
const OPEN: c_int = 0x2 | 0x4 | 0x8000;
/// The destructor `SQLITE_TRANSIENT`: SQLite copies a text when it is bound.
const TRANSIENT: isize = -1;

const SCHEMA: &str = "CREATE TABLE hotels (key text PRIMARY KEY, name text, address text, city text, kind text, stars int, \
    price real, rooms int, opened int, place text, pets text);";
const INDEXES: &str = "CREATE INDEX of_address ON hotels (city, address); CREATE INDEX of_price ON hotels (city, price); ANALYZE;";

const STATEMENTS: [(Question, &str); 5] = [
    (Question::Get, "SELECT * FROM hotels WHERE key = ?"),
    (Question::City, "SELECT * FROM hotels WHERE city = ?"),
    (
        Question::Address,
        "SELECT * FROM hotels WHERE city = ? AND address = ?",
    ),
    (
        Question::Price,
        "SELECT * FROM hotels WHERE city = ? AND price BETWEEN CAST(? AS real) AND CAST(? AS real)",
    ),
    (
        Question::Update,
        "UPDATE hotels SET price = CAST(? AS real) WHERE key = ?",
    ),
];

type Handle = *mut c_void;
type Destructor = isize;

/// The functions of the library that are used here.
struct Library {
    open: unsafe extern "C" fn(*const c_char, *mut Handle, c_int, *const c_char) -> c_int,
    close: unsafe extern "C" fn(Handle) -> c_int,
    exec: unsafe extern "C" fn(Handle, *const c_char, Handle, Handle, Handle) -> c_int,
    prepare: unsafe extern "C" fn(Handle, *const c_char, c_int, *mut Handle, Handle) -> c_int,
    finalize: unsafe extern "C" fn(Handle) -> c_int,
    bind: unsafe extern "C" fn(Handle, c_int, *const c_char, c_int, Destructor) -> c_int,
    step: unsafe extern "C" fn(Handle) -> c_int,
    reset: unsafe extern "C" fn(Handle) -> c_int,
    columns: unsafe extern "C" fn(Handle) -> c_int,
    text: unsafe extern "C" fn(Handle, c_int) -> *const c_char,
    bytes: unsafe extern "C" fn(Handle, c_int) -> c_int,
    changes: unsafe extern "C" fn(Handle) -> c_int,
    error: unsafe extern "C" fn(Handle) -> *const c_char,
    version: unsafe extern "C" fn() -> *const c_char,
}

impl Library {
    #[expect(
        clippy::missing_transmute_annotations,
        reason = "the type of each field is that of its function"
    )]
    fn open() -> Result<Library> {
        // SAFETY: the name is a C string. The library and its functions stay loaded until the process ends.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err("SQLite is not installed: no libsqlite3.so.0".into());
        }
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the library is loaded. The function has had this type since SQLite 3.5, and its documentation
                // promises to keep it.
                let function = unsafe { libc::dlsym(library, $name.as_ptr()) };
                if function.is_null() {
                    return Err(format!("SQLite has no {:?}", $name).into());
                }
                // SAFETY: the pointer is not null, and has the type of the field.
                unsafe { std::mem::transmute(function) }
            }};
        }
        Ok(Library {
            open: function!(c"sqlite3_open_v2"),
            close: function!(c"sqlite3_close"),
            exec: function!(c"sqlite3_exec"),
            prepare: function!(c"sqlite3_prepare_v2"),
            finalize: function!(c"sqlite3_finalize"),
            bind: function!(c"sqlite3_bind_text"),
            step: function!(c"sqlite3_step"),
            reset: function!(c"sqlite3_reset"),
            columns: function!(c"sqlite3_column_count"),
            text: function!(c"sqlite3_column_text"),
            bytes: function!(c"sqlite3_column_bytes"),
            changes: function!(c"sqlite3_changes"),
            error: function!(c"sqlite3_errmsg"),
            version: function!(c"sqlite3_libversion"),
        })
    }
}

/// Returns the version of the library.
pub fn version() -> Result<String> {
    let library = Library::open()?;
    // SAFETY: the function returns a static string.
    let version = unsafe { CStr::from_ptr((library.version)()) };
    Ok(version.to_string_lossy().into_owned())
}

/// A database of hotels.
pub struct Sqlite {
    library: Library,
    database: Handle,
    /// In the order of [`STATEMENTS`].
    prepared: Vec<Handle>,
}

/// The result of executing a question repeatedly.
pub struct SqliteRun {
    pub answered: u64,
    pub cpu_s: f64,
    pub elapsed: Duration,
    /// In nanoseconds, because most executions take less than a microsecond.
    pub latencies: Histogram<u64>,
}

impl Sqlite {
    /// Creates a database in a folder with all hotels. If `durable`, each write is synced before it returns.
    pub fn load(folder: &Path, hotels: &Hotels, durable: bool) -> Result<Sqlite> {
        let path = folder.join("hotels.sqlite");
        let path = CString::new(path.display().to_string())?;
        let library = Library::open()?;
        let mut database = ptr::null_mut();
        // SAFETY: the path is a C string, and the handle is written before it is used.
        let opened = unsafe { (library.open)(path.as_ptr(), &mut database, OPEN, ptr::null()) };
        let mut own = Sqlite {
            library,
            database,
            prepared: Vec::new(),
        };
        own.check(opened)?;
        own.run("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -1048576; PRAGMA mmap_size = 1073741824;")?;
        own.run(SCHEMA)?;
        own.run("BEGIN")?;
        let insert = own.prepare("INSERT INTO hotels VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?;
        for row in hotels.rows() {
            own.rows(insert, &row)?;
        }
        // SAFETY: the statement was prepared here, and is not used afterwards.
        unsafe { (own.library.finalize)(insert) };
        own.run("COMMIT")?;
        own.run(INDEXES)?;
        own.run("PRAGMA wal_checkpoint(TRUNCATE)")?;
        own.run(if durable {
            "PRAGMA synchronous = FULL"
        } else {
            "PRAGMA synchronous = NORMAL"
        })?;
        for (_, text) in STATEMENTS {
            let statement = own.prepare(text)?;
            own.prepared.push(statement);
        }
        Ok(own)
    }

    /// Executes a question for a while, and verifies the number of rows of each result.
    pub fn drive(&self, question: Question, hotels: &Hotels, time: Duration) -> Result<SqliteRun> {
        let at = STATEMENTS.iter().position(|it| it.0 == question);
        let statement = self.prepared[at.ok_or("no such question")?];
        let mut random = Random::new(7);
        let mut requests = SqliteRun {
            answered: 0,
            cpu_s: 0.0,
            elapsed: Duration::ZERO,
            latencies: Histogram::new(3)?,
        };
        let all: Vec<_> = (0..20_000)
            .map(|_| {
                let drawn = draw_subject(hotels, &mut random);
                let words = question.parameters(hotels, drawn.number, drawn.prices);
                (words, drawn.rows(question, hotels) as u64)
            })
            .collect();
        let (started, before) = (Instant::now(), thread_cpu_s()?);
        while started.elapsed() < time {
            let (words, expected) = &all[requests.answered as usize % all.len()];
            let since = Instant::now();
            let rows = self.rows(statement, words)?;
            requests
                .latencies
                .record(since.elapsed().as_nanos() as u64)?;
            if rows != *expected {
                return Err(format!("SQLite: {rows} rows and not {expected}: {words:?}").into());
            }
            requests.answered += 1;
        }
        requests.cpu_s = thread_cpu_s()? - before;
        requests.elapsed = started.elapsed();
        Ok(requests)
    }

    fn run(&self, text: &str) -> Result<()> {
        let text = CString::new(text)?;
        let none = ptr::null_mut();
        // SAFETY: the database is open, and the text is a C string. There is no callback and no buffer for an error
        // text.
        let done = unsafe { (self.library.exec)(self.database, text.as_ptr(), none, none, none) };
        self.check(done)
    }

    fn prepare(&self, text: &str) -> Result<Handle> {
        let mut statement = ptr::null_mut();
        let (size, none) = (c_int::try_from(text.len())?, ptr::null_mut());
        // SAFETY: the database is open. The text is read up to its size, and the handle is written before it is used.
        let done = unsafe {
            let text = text.as_ptr().cast();
            (self.library.prepare)(self.database, text, size, &mut statement, none)
        };
        self.check(done)?;
        Ok(statement)
    }

    /// Executes a statement, and reads all columns of all rows. Returns the number of rows, or of changed rows.
    fn rows<T: AsRef<str>>(&self, statement: Handle, words: &[T]) -> Result<u64> {
        let library = &self.library;
        for (at, word) in words.iter().enumerate() {
            let word = word.as_ref();
            let (number, size) = (c_int::try_from(at + 1)?, c_int::try_from(word.len())?);
            // SAFETY: the statement is prepared, and the text is copied during this call.
            let bound =
                unsafe { (library.bind)(statement, number, word.as_ptr().cast(), size, TRANSIENT) };
            self.check(bound)?;
        }
        let (mut rows, mut read) = (0, 0);
        // SAFETY: the statement is prepared. Columns are read from an existing row, before the next step.
        let last = unsafe {
            let columns = (library.columns)(statement);
            loop {
                match (library.step)(statement) {
                    ROW => {
                        rows += 1;
                        for column in 0..columns {
                            let text = (library.text)(statement, column);
                            read += usize::from(!text.is_null());
                            read += (library.bytes)(statement, column) as usize;
                        }
                    }
                    last => break last,
                }
            }
        };
        std::hint::black_box(read);
        // SAFETY: the statement is prepared. The result of the reset is that of the last step, which is checked below.
        let (columns, _) = unsafe { ((library.columns)(statement), (library.reset)(statement)) };
        if last != DONE {
            return Err(self.failure().into());
        }
        // SAFETY: the database is open.
        let changed = unsafe { (library.changes)(self.database) };
        Ok(match columns {
            0 => u64::try_from(changed)?,
            _ => rows,
        })
    }

    fn check(&self, code: c_int) -> Result<()> {
        match code {
            0 => Ok(()),
            _ => Err(self.failure().into()),
        }
    }

    fn failure(&self) -> String {
        // SAFETY: the function returns a string, also for a database that could not be opened.
        let text = unsafe { CStr::from_ptr((self.library.error)(self.database)) };
        format!("SQLite: {}", text.to_string_lossy())
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // SAFETY: all handles were created here, and are not used afterwards.
        unsafe {
            for statement in &self.prepared {
                (self.library.finalize)(*statement);
            }
            (self.library.close)(self.database);
        }
    }
}

/// Returns the processor time of this thread so far, in seconds.
fn thread_cpu_s() -> Result<f64> {
    // SAFETY: an all-zero timespec is valid, and it outlives the call.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        if libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        time
    };
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_return_the_expected_rows() {
        if Library::open().is_err() {
            larder_testing::report_missing("libsqlite3");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let hotels = Hotels::generate(500, 1);
        let sqlite = Sqlite::load(folder.path(), &hotels, false).expect("it loads");
        for question in Question::ALL {
            let requests = sqlite.drive(question, &hotels, Duration::from_millis(5));
            assert!(requests.expect("rows are counted").answered > 0);
        }
    }
}
