//! Models and tokenizers by their names on the hub, from a local server with its API.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Folder, short, text};
use fullshard_testing::LocalHub;
use std::fs;
use std::process::Output;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_secret";

const FLAGS: [&str; 17] = [
    "train",
    "--model_name_or_path",
    "org/tiny",
    "--tokenizer_name",
    "org/tiny",
    "--train_file",
    "train.txt",
    "--max_steps",
    "2",
    "--block_size",
    "16",
    "--num_cores",
    "2",
    "--logging_steps",
    "1",
    "--model_revision",
    "v2",
];

/// A folder with a trained model, and a hub that has it.
fn serve() -> (Folder, LocalHub) {
    let folder = Folder::new();
    folder.stdout(&short(&["--max_steps", "1", "--block_size", "16"]));
    let server = LocalHub::start();
    let names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let contents = names.map(|name| fs::read(folder.path("out").join(name)).unwrap());
    let files: Vec<(&str, &[u8])> =
        names.into_iter().zip(contents.iter().map(Vec::as_slice)).collect();
    server.model("org/tiny", "v2", COMMIT, &files);
    (folder, server)
}

/// Runs with a hub, and with variables.
fn run(folder: &Folder, endpoint: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = folder.command(args);
    command.env("HF_ENDPOINT", endpoint).env_remove("HF_HUB_OFFLINE").env_remove("HF_TOKEN");
    command.envs(variables.iter().copied()).output().unwrap()
}

#[track_caller]
fn succeeds(output: Output) -> (String, String) {
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

fn losses(folder: &Folder, output: &str) -> Vec<serde_json::Value> {
    let state = folder.json(&format!("{output}/trainer_state.json"));
    let log = state["log_history"].as_array().unwrap();
    log.iter().filter_map(|entry| entry.get("loss").cloned()).collect()
}

#[test]
fn trains_a_model_of_the_hub_and_again_offline() {
    let (folder, server) = serve();
    let endpoint = server.address().to_owned();
    server.require_token(TOKEN);
    let refused = run(&folder, &endpoint, &FLAGS, &[]);
    let stderr = text(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("HF_TOKEN or --token"), "{stderr}");

    let into = |output: &'static str| [&FLAGS[..], &["--output_dir", output]].concat();
    let (stdout, stderr) = succeeds(run(
        &folder,
        &endpoint,
        &[&into("first")[..], &["--token", TOKEN, "-vvv"]].concat(),
        &[],
    ));
    assert!(stdout.contains("downloading org/tiny unless cached"), "{stdout}");
    assert_eq!(losses(&folder, "first").len(), 2);
    let config = fs::read_to_string(folder.path("first/run_config.toml")).unwrap();
    assert!(config.contains("pretrained = \"org/tiny\"") && config.contains(COMMIT), "{config}");
    let written = folder.names().into_iter().filter(|path| path.is_file());
    let written: String = written.map(|path| text(&fs::read(path).unwrap())).collect();
    assert!(![stdout, stderr, written].concat().contains(TOKEN), "the token is shown");

    server.stop();
    let (_, stderr) = succeeds(run(&folder, &endpoint, &into("second"), &[]));
    assert!(stderr.contains("warning: model org/tiny") && stderr.contains(COMMIT), "{stderr}");
    let again = ["train", "first/run_config.toml", "--output_dir", "third"];
    let (_, stderr) = succeeds(run(&folder, &endpoint, &again, &[("HF_HUB_OFFLINE", "1")]));
    assert!(!stderr.contains("warning"), "{stderr}");
    for output in ["second", "third"] {
        assert_eq!(losses(&folder, output), losses(&folder, "first"), "{output}");
    }
    let home = folder.path("empty").display().to_string();
    let empty = [("HF_HOME", home.as_str()), ("TRANSFORMERS_OFFLINE", "1")];
    let stderr = text(&run(&folder, &endpoint, &into("fourth"), &empty).stderr);
    assert!(stderr.contains("TRANSFORMERS_OFFLINE is set") && stderr.contains(&home), "{stderr}");
}

#[test]
fn plans_and_mistakes_download_no_weights() {
    let (folder, server) = serve();
    server.require_token(TOKEN);
    let token = [("HF_TOKEN", TOKEN)];
    let model = ["--model_revision", "v2"];
    let plan = ["plan", "--quick", "--topology", "cpu:2", "--model_name_or_path", "org/tiny"];
    succeeds(run(&folder, server.address(), &[&plan[..], &model].concat(), &token));
    let search = [&plan[..], &model, &["--search"]].concat();
    let (stdout, _) = succeeds(run(&folder, server.address(), &search, &token));
    assert!(stdout.contains("--model_name_or_path org/tiny"), "{stdout}");
    let bench = ["bench", "step", "--plan", "--config", "org/tiny", "--batch", "2", "--seq", "16"];
    succeeds(run(&folder, server.address(), &[&bench[..], &model].concat(), &token));
    let full = [&FLAGS[..], &["--output_dir", "out"]].concat();
    let output = run(&folder, server.address(), &full, &token);
    assert!(text(&output.stderr).contains("which is not empty"), "{}", text(&output.stderr));
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.authorization.is_some()), "{requests:?}");
    let weights = requests.iter().find(|request| request.path.contains("safetensors"));
    assert_eq!(weights, None);
    let asked = requests.iter().filter(|request| request.path.starts_with("/api")).count();
    assert!(asked < 10, "{asked} requests, some for every candidate of the search");
}
