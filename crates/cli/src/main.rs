//! The program `alluvium`.

fn main() -> std::process::ExitCode {
    alluvium_cli::main()
}
