// Rows by HTTP: a goroutine for each request, garbage in each, and a ticker.
package main

import (
	"fmt"
	"log"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

var ticks int64

func main() {
	rows := make([]string, 20000)
	for n := range rows {
		rows[n] = fmt.Sprintf("row %d", n)
	}
	go func() {
		for range time.Tick(time.Second) {
			atomic.AddInt64(&ticks, 1)
		}
	}()
	http.HandleFunc("/row/", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/row/"))
		if err != nil || n < 0 || n >= len(rows) {
			http.NotFound(w, r)
			return
		}
		parts := make(chan string)
		for i := 0; i < 16; i++ {
			go func() {
				garbage := make([][]byte, 64)
				for j := range garbage {
					garbage[j] = make([]byte, 1024)
				}
				parts <- rows[n]
			}()
		}
		for i := 0; i < 15; i++ {
			<-parts
		}
		fmt.Fprint(w, <-parts)
	})
	log.Fatal(http.ListenAndServe("0.0.0.0:8080", nil))
}
