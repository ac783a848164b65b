package main

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
)

func Example() {
	t := throttler.New(memorybackend.NewDefault(), nil)
	var h http.Handler
	ask := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		return w.Code
	}
	depth := 0
	h, err := newServer(t, func(http.ResponseWriter, *http.Request) {
		if depth++; depth > 100 {
			return
		} else if depth < 100 {
			ask() // while this one is in flight
			return
		}
		fmt.Println("with 100 in flight:", ask())
	})
	if err != nil {
		log.Fatal(err)
	}
	ask()
	fmt.Println("when all have ended:", ask())
	// Output:
	// with 100 in flight: 429
	// when all have ended: 200
}
