//! Shell completions and the manual page.

use clap::Command;
use clap_complete::Shell;
use fullshard::{Error, Result};
use std::io::Write;

/// Flags of `fullshard completions`.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Prints the completions of a shell.
pub fn completions(args: &CompletionsArgs, mut command: Command) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "fullshard", &mut text);
    print(&text)
}

/// Prints the manual page of all commands.
pub fn man(command: Command) -> Result<()> {
    let mut text = Vec::new();
    let mut command = command.flatten_help(false);
    command.build();
    render(&command, &mut text).map_err(failed)?;
    print(&text)
}

fn render(command: &Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(text)?;
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        render(inner, text)?;
    }
    Ok(())
}

fn print(text: &[u8]) -> Result<()> {
    std::io::stdout().write_all(text).map_err(failed)
}

fn failed(source: std::io::Error) -> Error {
    Error::Usage(format!("cannot write to standard output: {source}"))
}
