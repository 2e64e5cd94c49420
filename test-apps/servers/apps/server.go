// A Go HTTP server, built as one static program.
package main

import (
	"fmt"
	"net/http"
	"strconv"
)

func main() {
	rows := make([]string, 20000)
	for n := range rows {
		rows[n] = fmt.Sprintf("row %d", n)
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "hello from go\n")
	})
	http.HandleFunc("/row/", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Path[len("/row/"):])
		if err != nil || n < 0 || n >= len(rows) {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, rows[n])
	})
	if err := http.ListenAndServe("0.0.0.0:8080", nil); err != nil {
		panic(err)
	}
}
