//! KubeStellar in one binary: this file is its table of contents.

mod cli;
mod clients;
mod commands;
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

/// A third of all processor time went into the system's allocator: objects are trees of many small strings, made in one
/// thread and dropped in another. This one takes less of both, if it does not ask for huge pages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::parse();
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
    // What is left at this point are reads of standard streams; nobody waits for them.
    runtime.shutdown_background();
    ExitCode::from(exit as u8)
}
