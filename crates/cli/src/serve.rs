//! `larder serve`: runs a server in this process until ctrl-c or SIGTERM.

use std::path::PathBuf;

use clap::Args;
use larder_protocol::config::{ClusterMode, ServerConfig};
use larder_server::Server;

use crate::failure::Failure;
use crate::log;
use crate::output;
use crate::shutdown::ShutdownHandler;

const EXAMPLES: &str = "\
Examples:
    larder serve
    larder serve --data /var/lib/larder
    LARDER_SERVER_PASSWORD='open sesame' larder serve --resp 0.0.0.0:7379
    larder serve --config larder.toml --set fetch.bytes_per_second=50000000

Every setting can be specified with --set or as an environment variable;
`larder config reference` lists them.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the addresses as one line of JSON when the server is ready
    #[arg(long)]
    json: bool,
}

/// The sources of the configuration. Flags override the environment, which overrides the file.
#[derive(Args)]
pub struct ConfigArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", env = "LARDER_CONFIG")]
    pub config: Option<PathBuf>,
    /// The data folder; it is created if it does not exist [default: larder-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
    /// Address and port for Redis clients; port 0: a free port [default: 127.0.0.1:7379]
    #[arg(long, value_name = "ADDR:PORT")]
    pub resp: Option<String>,
    /// Address and port for the HTTP API, the metrics and the console [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDR:PORT")]
    pub http: Option<String>,
    /// Any other setting, such as fetch.parallel=8; can be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

impl ConfigArgs {
    /// Returns the configuration of a server with these arguments.
    pub fn load(&self) -> Result<ServerConfig, Failure> {
        let mut flags = Vec::new();
        for setting in &self.settings {
            let Some((key, value)) = setting.split_once('=') else {
                return Err(Failure::usage(format!(
                    "--set {setting}: write KEY=VALUE, such as --set fetch.parallel=8"
                )));
            };
            flags.push((key.trim().to_owned(), value.to_owned()));
        }
        for (key, value) in [
            ("server.data", &self.data),
            ("server.resp", &self.resp),
            ("server.http", &self.http),
        ] {
            flags.extend(value.iter().map(|value| (key.to_owned(), value.clone())));
        }
        // Names and values of larder's variables are valid UTF-8.
        let env = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        ServerConfig::load(self.config.as_deref(), env, flags)
            .map_err(|error| Failure::usage(error.to_string()))
    }
}

pub fn run(args: ServeArgs) -> Result<(), Failure> {
    let config = args.config.load()?;
    log::start(&config)?;
    let ending = ShutdownHandler::listen()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("start the server"))?;
    runtime.block_on(async {
        let data = config.server.data.clone();
        let is_tls = !config.server.tls_cert.is_empty();
        let scheme = if is_tls { "https" } else { "http" };
        // A node of a cluster learns later whether it may take part.
        let cluster = (config.cluster.mode == ClusterMode::Etcd)
            .then(|| (config.cluster.name.clone(), config.cluster.node.clone()));
        let server = Server::start(config)
            .await
            .map_err(|error| Failure::new(error.to_string()))?;
        ending.set_server(server.shared().clone());
        let (resp, http) = (server.resp_addr(), server.http_addr());
        if args.json {
            let ready = serde_json::json!({
                "resp": resp.to_string(),
                "http": format!("{scheme}://{http}"),
                "data": data,
                "pid": std::process::id(),
            });
            output::print_line(&ready.to_string())?;
        } else {
            let http = format!("{scheme}://{http}");
            let head = match &cluster {
                Some((cluster, node)) => format!(
                    "larder listens, and joins the cluster {cluster} as {node}: larder cluster status shows when it takes part"
                ),
                None => "larder is ready".to_owned(),
            };
            output::print_line(&greeting(&head, &resp.to_string(), &http, is_tls, &data))?;
        }
        tokio::select! {
            () = ending.stop_requested() => {}
            // Other threads may wait for the failed one, so the process ends without them.
            why = server.failed() => return Err(Failure::new(why)),
        }
        tracing::info!("stopping");
        server
            .stop()
            .await
            .map_err(|error| Failure::new(error.to_string()))
    })
}

fn greeting(head: &str, resp: &str, http: &str, is_tls: bool, data: &std::path::Path) -> String {
    let (host, port) = resp.rsplit_once(':').unwrap_or((resp, ""));
    let server_flag = match http {
        "http://127.0.0.1:7070" => String::new(),
        other if is_tls => format!(" --server {other} --ca FILE"),
        other => format!(" --server {other}"),
    };
    let tls_flags = if is_tls { " --tls --cacert FILE" } else { "" };
    format!(
        "{head}\n  \
         Redis protocol  {resp}\n  \
         HTTP, console   {http}/\n  \
         data folder     {}\n\n\
         Try, from another terminal:\n  \
         larder push FILE --store NAME --key COLUMN{server_flag}\n  \
         redis-cli -h {host} -p {port}{tls_flags} GET NAME:KEY\n\n\
         Ctrl-c stops it.",
        data.display()
    )
}
