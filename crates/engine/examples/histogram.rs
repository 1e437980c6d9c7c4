//! Histogram of what a program asks of malloc: `histogram PROGRAM [ARGUMENTS...]`.

use capriole::aggregate::model::Measure;
use std::time::Duration;

fn main() -> capriole::Result<()> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let mut session = capriole::Session::launch(&words)?;
    let sizes = session.add("libc:malloc size=$arg1 hist(size)")?;
    session.run();
    while session.status() == capriole::Status::Running {
        session.wait(Duration::from_millis(20));
        session.read()?;
    }
    for row in session.rows(&sizes).iter().flat_map(|table| &table.rows) {
        println!("{} calls", row.calls);
        for measure in &row.measures {
            if let Measure::Histogram(histogram) = measure {
                for bucket in &histogram.buckets {
                    println!("{:>12} .. {:<12} {}", bucket.low, bucket.high, bucket.count);
                }
            }
        }
    }
    Ok(())
}
