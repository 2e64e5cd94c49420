// The greeting of functions/hello.py in Go, answered as frame.py answers.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

var served atomic.Int64

type answer struct {
	Function   string         `json:"function"`
	Parameters map[string]any `json:"parameters"`
	Digest     string         `json:"digest"`
	Seconds    float64        `json:"seconds"`
	Served     int64          `json:"served"`
}

func handle() string {
	return "hello, world"
}

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.Error(w, r.URL.Path+": there is only /", http.StatusNotFound)
			return
		}
		for name := range r.URL.Query() {
			http.Error(w, name+": no such parameter; there are none", http.StatusBadRequest)
			return
		}
		began := time.Now()
		sum := sha256.Sum256([]byte(handle()))
		text, err := json.Marshal(answer{"hello", map[string]any{}, hex.EncodeToString(sum[:]), time.Since(began).Seconds(), served.Add(1)})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Connection", "close")
		fmt.Fprintf(w, "%s\n", text)
	})
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	log.Fatal(http.ListenAndServe(":"+port, nil))
}
