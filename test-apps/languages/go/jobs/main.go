// What Go programs do with goroutines, files, processes and sockets; prints only what is the same each time.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Sums what many goroutines send, while the collector runs.
func Goroutines(count int) int {
	numbers := make(chan int)
	var group sync.WaitGroup
	for n := 0; n < count; n++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			garbage := make([]byte, 4096)
			if n%100 == 0 {
				runtime.GC()
			}
			numbers <- n + len(garbage) - 4096
		}(n)
	}
	go func() {
		group.Wait()
		close(numbers)
	}()
	sum := 0
	for n := range numbers {
		sum += n
	}
	return sum
}

// Echoes messages over TCP on many connections at once.
func Echo(count int) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer listener.Close()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(connection, connection)
				connection.Close()
			}()
		}
	}()
	right := make(chan int, count)
	for n := 0; n < count; n++ {
		go func(n int) {
			connection, err := net.Dial("tcp", listener.Addr().String())
			must(err)
			connection.SetDeadline(time.Now().Add(60 * time.Second))
			fmt.Fprintf(connection, "message %d", n)
			connection.(*net.TCPConn).CloseWrite()
			answer, err := io.ReadAll(connection)
			must(err)
			connection.Close()
			if string(answer) == fmt.Sprintf("message %d", n) {
				right <- 1
			} else {
				right <- 0
			}
		}(n)
	}
	sum := 0
	for n := 0; n < count; n++ {
		sum += <-right
	}
	return sum
}

func main() {
	fmt.Println("goroutines", Goroutines(5000))
	fmt.Println("echo", Echo(100))
	out, err := exec.Command("sh", "-c", "seq 1 10 | tac | tr '\\n' ' '").Output()
	must(err)
	fmt.Println("exec", string(out))

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	must(syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	fmt.Println("signal", <-signals)

	directory, err := os.MkdirTemp("", "jobs")
	must(err)
	defer os.RemoveAll(directory)
	digest := sha256.New()
	for n := 0; n < 200; n++ {
		must(os.WriteFile(filepath.Join(directory, fmt.Sprint("file", n)), []byte(fmt.Sprint("contents ", n)), 0o600))
	}
	must(filepath.Walk(directory, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			must(err)
			digest.Write(data)
		}
		return err
	}))
	fmt.Printf("files %x\n", digest.Sum(nil))
}
