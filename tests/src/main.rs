//! The program `alluvium`, built for the tests that run it as a process.

fn main() -> std::process::ExitCode {
    alluvium_cli::main()
}
