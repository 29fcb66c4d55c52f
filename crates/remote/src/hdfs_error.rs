//! Converts HDFS errors to messages with advice.
//!
//! A namenode responds with the name and message of a Java exception, followed by a stack trace.

use hdfs_native::HdfsError;

use crate::error::{Error, redact};
use crate::location::Location;

pub(crate) fn explain(location: &Location, error: HdfsError) -> Error {
    let (retry, reason) = match &error {
        HdfsError::FileNotFound(_) => {
            return Error::NotFound {
                location: location.to_string(),
            };
        }
        HdfsError::RPCError(exception, text) | HdfsError::FatalRPCError(exception, text) => {
            let name = exception.rsplit(['.', '$']).next().unwrap_or(exception);
            let message = text.lines().next().unwrap_or_default().trim();
            if name == "FileNotFoundException" && is_absence(message) {
                return Error::NotFound {
                    location: location.to_string(),
                };
            }
            let (retry, advice) = advice(name, message);
            (retry, format!("HDFS refused: {name}: {message}{advice}"))
        }
        HdfsError::IOError(inner) => (
            true,
            format!(
                "HDFS does not answer ({inner}); check that the namenode runs there, and its port for clients, often 8020"
            ),
        ),
        HdfsError::NoSASLMechanism | HdfsError::SASLError(_) | HdfsError::GSSAPIError(..) => (
            false,
            format!(
                "HDFS requires authentication ({error}); provide a Kerberos ticket (kinit) and the library libgssapi_krb5, or a delegation token in the file \
                 HADOOP_TOKEN_FILE_LOCATION, and HADOOP_CONF_DIR naming the cluster's settings"
            ),
        ),
        HdfsError::BlocksNotFound(_) | HdfsError::ChecksumError => (
            true,
            format!("no datanode gives a good copy of a block ({error}); see hdfs fsck"),
        ),
        HdfsError::DataTransferError(_) => (
            true,
            format!("the connection to a datanode broke: {error}; see hdfs dfsadmin -report"),
        ),
        HdfsError::OperationFailed(_)
        | HdfsError::AlreadyExists(_)
        | HdfsError::InternalError(_)
        | HdfsError::InvalidRPCResponse(_) => (true, error.to_string()),
        _ => (false, error.to_string()),
    };
    Error::Failed {
        location: location.to_string(),
        reason: redact(&reason),
        retry,
    }
}

/// Returns whether the file does not exist. The same exception reports a file that disappeared while it was written.
fn is_absence(message: &str) -> bool {
    message.contains("does not exist") && !message.contains("lease")
}

/// Returns whether a retry may succeed, and advice.
fn advice(exception: &str, message: &str) -> (bool, &'static str) {
    match exception {
        "SafeModeException" | "RetriableException" => (
            true,
            "; nothing can be written until the namenode leaves safe mode (check with hdfs dfsadmin -safemode get)",
        ),
        "StandbyException" => (
            true,
            "; write the name service instead of this namenode, and have HADOOP_CONF_DIR name the folder of its hdfs-site.xml",
        ),
        "AccessControlException" | "AuthorizationException" => (
            false,
            "; connect as another user (HADOOP_USER_NAME, a token, a ticket), or grant this user access",
        ),
        "InvalidToken" => (
            false,
            "; the delegation token in HADOOP_TOKEN_FILE_LOCATION is not valid for this cluster, or has expired; get a new one",
        ),
        "DSQuotaExceededException" | "NSQuotaExceededException" | "QuotaExceededException" => {
            (false, "; raise the folder's quota, or remove what is there")
        }
        "IOException" if message.contains("could only be written to") => (
            true,
            "; see hdfs dfsadmin -report for datanodes and their space",
        ),
        "InvalidPathException" | "ParentNotDirectoryException" | "FileAlreadyExistsException" => {
            (false, "")
        }
        _ => (true, ""),
    }
}
