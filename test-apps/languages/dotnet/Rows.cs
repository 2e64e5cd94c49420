using System;
using System.Linq;
using System.Net;
using System.Net.Sockets;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

/// Rows by HTTP over asynchronous sockets: the pool's threads, garbage in each request, a timer.
static class Rows
{
    static readonly string[] All = Enumerable.Range(0, 20000).Select(n => "row " + n).ToArray();
    static long ticks;

    static async Task Serve(TcpClient client)
    {
        using (client)
        {
            var stream = client.GetStream();
            var buffer = new byte[4096];
            var text = "";
            while (!text.Contains("\r\n\r\n"))
            {
                int count = await stream.ReadAsync(buffer, 0, buffer.Length);
                if (count == 0) return;
                text += Encoding.ASCII.GetString(buffer, 0, count);
            }
            var path = text.Split(' ')[1];
            var parts = await Task.WhenAll(Enumerable.Range(0, 8).Select(_ => Task.Run(() =>
            {
                var garbage = Enumerable.Range(0, 64).Select(n => new byte[1024]).ToArray();
                return All[int.Parse(path.Substring("/row/".Length)) + garbage.Length - 64];
            })));
            var answer = "HTTP/1.1 200 OK\r\nContent-Length: " + parts[0].Length + "\r\nConnection: close\r\n\r\n" + parts[0];
            var bytes = Encoding.ASCII.GetBytes(answer);
            await stream.WriteAsync(bytes, 0, bytes.Length);
        }
    }

    static void Main()
    {
        var timer = new Timer(_ => Interlocked.Increment(ref ticks), null, 1000, 1000);
        var listener = new TcpListener(IPAddress.Any, 8080);
        listener.Start();
        while (true)
        {
            var served = Serve(listener.AcceptTcpClient());
        }
    }
}
