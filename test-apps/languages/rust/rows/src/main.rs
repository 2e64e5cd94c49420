//! Rows by HTTP, from a pool of threads.
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{mpsc, Arc, Mutex};

fn serve(mut connection: TcpStream, rows: &[String]) -> std::io::Result<()> {
    let mut lines = BufReader::new(connection.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.map_or(false, |line| !line.is_empty()) {}
    let row = first.split(' ').nth(1).and_then(|path| path.strip_prefix("/row/")?.parse::<usize>().ok()).and_then(|n| rows.get(n));
    let (status, body) = row.map_or(("404 Not Found", ""), |body| ("200 OK", body));
    write!(connection, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn main() -> std::io::Result<()> {
    let rows: Arc<Vec<String>> = Arc::new((0..20_000).map(|n| format!("row {n}")).collect());
    let (give, take) = mpsc::channel::<TcpStream>();
    let take = Arc::new(Mutex::new(take));
    for _ in 0..8 {
        let (take, rows) = (take.clone(), rows.clone());
        std::thread::spawn(move || loop {
            let next = take.lock().unwrap().recv();
            match next {
                Ok(connection) => drop(serve(connection, &rows)),
                Err(_) => return,
            }
        });
    }
    assert_eq!(squares::sum(&(0..10).collect::<Vec<_>>(), 4), 285);
    for connection in TcpListener::bind("0.0.0.0:8080")?.incoming() {
        give.send(connection?).expect("the pool is there");
    }
    Ok(())
}
