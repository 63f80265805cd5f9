//! `playhouse scale`

use std::num::NonZeroU32;

use clap::Args;

use super::output::{Output, count};
use super::target::Target;

/// Set how many instances of a site there are.
///
/// A number stays in force, also for the controllers to come, until `auto` leaves it to the scaler again. It must be within
/// `instances` of the site file.
#[derive(Debug, Args)]
pub(super) struct Scale {
    /// How many, or `auto`
    #[arg(value_name = "N|auto", value_parser = instances)]
    instances: serde_json::Value,
    #[command(flatten)]
    target: Target,
}

impl Scale {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let request = serde_json::json!({"instances": self.instances});
        let answer = self.target.controller()?.post("/v1/scale", &request)?;
        if output.is_json() {
            return output.json(&answer);
        }
        match self.instances.as_u64() {
            Some(number) => {
                output.text(&format!("{}, until `playhouse scale auto`\n", count(number, "instance")))
            }
            None => output.text("as many instances as the scaler finds right\n"),
        }
    }
}

fn instances(text: &str) -> Result<serde_json::Value, String> {
    match text {
        "auto" => Ok(text.into()),
        _ => match text.parse::<NonZeroU32>() {
            Ok(number) => Ok(number.get().into()),
            Err(_) => Err("neither a number from 1 on nor auto".to_owned()),
        },
    }
}
