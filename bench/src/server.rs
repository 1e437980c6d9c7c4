//! A node server that is busy with its own requests.

use std::process::Command;

use crate::process::BenchError;
use crate::talk::Talk;

/// Script that answers requests with a computed page, and sends requests to itself, one after the
/// other. A line on its standard input is answered once the next request has been answered.
const SCRIPT: &str = r#"
const http = require('http');
const page = (n) => JSON.stringify(Array.from({length: 20}, (_, i) => ({id: i, text: 'x'.repeat((n + i) % 50)})));
let served = 0;
const server = http.createServer((request, response) => {
  served += 1;
  response.end(page(Number(request.url.slice(1))));
});
const get = (n) => new Promise((resolve, reject) => {
  http.get({port: server.address().port, path: '/' + n, agent}, (response) => {
    let text = '';
    response.on('data', (part) => { text += part; });
    response.on('end', () => text === page(n) ? resolve() : reject(new Error('wrong page')));
  }).on('error', reject);
});
const agent = new http.Agent({keepAlive: true});
let asked = [];
server.listen(0, '127.0.0.1', async () => {
  console.log('ok');
  require('readline').createInterface({input: process.stdin})
    .on('line', () => asked.push(true)).on('close', () => process.exit(0));
  for (let n = 0; ; n += 1) {
    await get(n % 1000);
    const now = asked;
    asked = [];
    for (const _ of now) console.log('ok ' + served);
    if (n % 10 === 0) await new Promise((resolve) => setTimeout(resolve, 1));
  }
});
"#;

/// A running server.
#[derive(Debug)]
pub struct Server(Talk);

impl Server {
    /// Starts the server.
    ///
    /// # Errors
    ///
    /// [`BenchError::Skipped`] if there is no node.
    pub fn start() -> Result<Server, BenchError> {
        let mut talk = Talk::start(Command::new("node").args(["-e", SCRIPT]))
            .map_err(|error| BenchError::Skipped(format!("no node ({error})")))?;
        talk.answer()?;
        Ok(Server(talk))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Waits until it has served another request.
    ///
    /// # Errors
    /// The server has ended.
    pub fn check(&mut self) -> Result<(), BenchError> {
        self.0.ask("").map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_serves_itself() {
        let mut server = match Server::start() {
            Err(BenchError::Skipped(why)) => {
                println!("skipped: {why}");
                return;
            }
            server => server.expect("it starts"),
        };
        for _ in 0..3 {
            server.check().expect("it serves");
        }
    }
}
