//! KubeStellar in one binary: this file is its table of contents.

mod cli;
mod clients;
mod commands;
mod contexts;
mod control;
mod datadir;
mod demo;
mod duration;
mod exit;
mod kubeconfig;
mod logging;
mod printer;
mod server;
mod shape;
mod signals;

use std::process::ExitCode;

/// The system's allocator took a third of all processor time: objects are trees of many small strings, allocated in one
/// thread and dropped in another. This allocator takes less time, and less memory if it does not use huge pages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::parse();
    runtime::connect::set_proxies(clients::proxies());
    let printer = printer::Printer::new(cli.global.quiet, cli.global.no_color);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            printer.failure(&exit::Failure::new(exit::Exit::Failed, "starting", error));
            return ExitCode::from(exit::Exit::Failed as u8);
        }
    };
    let exit = runtime.block_on(cli::run(cli, &printer)).unwrap_or_else(|failure| {
        printer.failure(&failure);
        failure.exit
    });
    // Only reads of standard streams can be left here. Nothing waits for them.
    runtime.shutdown_background();
    ExitCode::from(exit as u8)
}
