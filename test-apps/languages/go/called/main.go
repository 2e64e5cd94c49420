// Rows by HTTP that C writes, on threads of its own too.
package main

/*
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct row { int n; char text[32]; };

static void *write_row(void *argument)
{
	struct row *row = argument;
	snprintf(row->text, sizeof row->text, "row %d", row->n);
	return NULL;
}

static int on_a_thread(struct row *row)
{
	pthread_t thread;
	return pthread_create(&thread, NULL, write_row, row) || pthread_join(thread, NULL);
}
*/
import "C"

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"unsafe"
)

func row(n int) (string, error) {
	made := (*C.struct_row)(C.calloc(1, C.sizeof_struct_row))
	defer C.free(unsafe.Pointer(made))
	made.n = C.int(n)
	if failed, err := C.on_a_thread(made); failed != 0 {
		return "", fmt.Errorf("no thread: %v", err)
	}
	return C.GoString(&made.text[0]), nil
}

func main() {
	if len(os.Args) > 1 {
		for n := 0; n < 100; n++ {
			if text, err := row(n); err != nil || text != fmt.Sprint("row ", n) {
				log.Fatal(text, err)
			}
		}
		fmt.Println("100 rows")
		return
	}
	http.HandleFunc("/row/", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/row/"))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		text, err := row(n)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, text)
	})
	log.Fatal(http.ListenAndServe("0.0.0.0:8080", nil))
}
