from ksrv import BaseHandler, Float32, Image, serve


class Bright(BaseHandler):
    def inference(self, image: Image[224, 224, 3]) -> Float32[3]:
        return image.mean(axis=(1, 2))


if __name__ == "__main__":
    serve(Bright)
