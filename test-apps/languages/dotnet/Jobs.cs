using System;
using System.Collections.Concurrent;
using System.Diagnostics;
using System.IO;
using System.IO.MemoryMappedFiles;
using System.Linq;
using System.Net;
using System.Net.Sockets;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

/// What .NET programs do with threads, memory, files, processes and sockets; prints only what is the same each time.
static class Jobs
{
    sealed class Tree
    {
        public Tree Left, Right;

        public static Tree Made(int depth)
        {
            return depth == 0 ? new Tree() : new Tree { Left = Made(depth - 1), Right = Made(depth - 1) };
        }

        public int Leaves()
        {
            return Left == null ? 1 : Left.Leaves() + Right.Leaves();
        }
    }

    static int Collector()
    {
        var sums = new ConcurrentBag<int>();
        Parallel.For(0, 8, _ =>
        {
            var old = Tree.Made(14);
            int sum = 0;
            for (int n = 0; n < 20; n++) sum += Tree.Made(12).Leaves();
            sums.Add(sum + old.Leaves());
        });
        GC.Collect();
        GC.WaitForPendingFinalizers();
        return sums.Sum();
    }

    static int Threads()
    {
        int count = 0;
        var gate = new object();
        var threads = Enumerable.Range(0, 32).Select(_ => new Thread(() =>
        {
            for (int n = 0; n < 1000; n++) lock (gate) count++;
        })).ToList();
        threads.ForEach(t => t.Start());
        threads.ForEach(t => t.Join());
        return count;
    }

    static string Echo()
    {
        var listener = new TcpListener(IPAddress.Loopback, 0);
        listener.Start();
        var server = Task.Run(() =>
        {
            using (var c = listener.AcceptTcpClient()) c.GetStream().CopyTo(c.GetStream());
        });
        using (var client = new TcpClient())
        {
            client.Connect((IPEndPoint)listener.LocalEndpoint);
            var bytes = Encoding.ASCII.GetBytes("hello over a socket");
            var stream = client.GetStream();
            stream.Write(bytes, 0, bytes.Length);
            client.Client.Shutdown(SocketShutdown.Send);
            var text = new StreamReader(stream).ReadToEnd();
            server.Wait();
            return text;
        }
    }

    static long Mapped(string path)
    {
        using (var file = MemoryMappedFile.CreateFromFile(path, FileMode.Create, null, 1 << 20))
        using (var view = file.CreateViewAccessor())
        {
            for (int n = 0; n < 1 << 20; n += 8) view.Write(n, (long)n);
            view.Flush();
        }
        return BitConverter.ToInt64(File.ReadAllBytes(path), 4096 * 17);
    }

    static string Child()
    {
        var start = new ProcessStartInfo("/bin/sh", "-c \"seq 1 10 | tac | tr '\\\\n' ' '\"")
            { RedirectStandardOutput = true, UseShellExecute = false };
        using (var child = Process.Start(start))
        {
            var text = child.StandardOutput.ReadToEnd();
            child.WaitForExit();
            return text + child.ExitCode;
        }
    }

    static string Null(string[] arguments)
    {
        string nothing = arguments.Length > 100 ? "x" : null;
        try
        {
            return nothing.Length.ToString();
        }
        catch (NullReferenceException)
        {
            return "caught";
        }
    }

    static void Main(string[] arguments)
    {
        Console.WriteLine("collector " + Collector());
        Console.WriteLine("threads " + Threads());
        Console.WriteLine("tasks " + Task.WhenAll(Enumerable.Range(0, 1000).Select(n => Task.Run(() => n * n % 10))).Result.Sum());
        Console.WriteLine("socket " + Echo());
        var path = Path.Combine(Path.GetTempPath(), "mapped-" + Process.GetCurrentProcess().Id);
        Console.WriteLine("mapped " + Mapped(path));
        File.Delete(path);
        Console.WriteLine("process " + Child());
        Console.WriteLine("null " + Null(arguments));
    }
}
