//! Shell completions and the manual page.

use crate::output::write;
use clap::Command;
use clap_complete::Shell;
use fullshard::{Error, Result};

/// Flags of `fullshard completions`.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Prints the completions of a shell.
pub fn completions(args: &CompletionsArgs, mut command: Command) {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "fullshard", &mut text);
    print(&text);
}

/// Prints the manual page of all commands.
pub fn man(command: Command) -> Result<()> {
    let mut text = Vec::new();
    let mut command = command.flatten_help(false);
    command.build();
    render(&command, &mut text).map_err(|error| Error::Usage(error.to_string()))?;
    print(&text);
    Ok(())
}

fn render(command: &Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(text)?;
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        render(inner, text)?;
    }
    Ok(())
}

fn print(text: &[u8]) {
    write(format_args!("{}", String::from_utf8_lossy(text)));
}
